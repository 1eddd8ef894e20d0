"""The devices of a model: GPUs as far as their memory goes, and the processor for the layers that are left.

The fit is known only when caches and plans have their places, so places are tried until one fits. No bit of
any answer depends on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from chaski.env import Environment
from chaski.errors import UnsupportedError
from chaski.ml import GPUOptions, gpus_of, usual_backend
from chaski.ml.backend import Device
from chaski.names import AUTO
from chaski.runner.fitting.hot_experts import Candidate, are_faster, slot_counts
from chaski.runner.fitting.work import Work
from chaski.runner.loading.gpus import ALL_LAYERS
from chaski.runner.loading.parts import ModelParts, ReservedModel
from chaski.runner.loading.sizes import Sizing

__all__ = ["reserve"]

_log = logging.getLogger(__name__)


def reserve(parts: ModelParts, backend: str | None = None) -> ReservedModel:
    """Reserve places for a model with a backend; None for the one that the environment asks for.

    Unless the user chose, it puts as many layers on GPUs as fit, and a size that memory decides about becomes
    smaller where the plans do not fit in addition to the caches. `ReservedModel.check` reports where nothing
    fits. Raises what opening a backend and placing a model raise.
    """
    name = Environment.read().backend if backend is None else backend
    is_own_choice = name != AUTO
    gpus: Sequence[Device] = ()
    if is_own_choice:
        gpus = gpus_of(name)
    else:
        wants_gpu = parts.flash_attention and parts.gpus.num_gpu != 0
        name, gpus = usual_backend() if wants_gpu else ("cpu", ())
    if not gpus or parts.gpus.num_gpu == 0:
        parts.gpus.on_processor()
        return _reserved(parts, "cpu" if gpus else name)
    try:
        return _Search(parts, name, gpus).reserve()
    except UnsupportedError as error:
        if is_own_choice or parts.gpus.num_gpu is not None:
            raise
        _log.warning("%s is computed on the processor: %s", parts.file.path.name, error)
        return _reserved(parts, "cpu")


def _reserved(parts: ModelParts, backend: str, *place: GPUOptions) -> ReservedModel:
    """Return the model at a place, in a smaller size where the plans have no room beside the caches.

    If nothing fits, it has the smallest size.
    """
    while True:
        reserved = ReservedModel(parts, backend, *place)
        if not reserved.needs.missing or not isinstance(parts.size, Sizing):
            return reserved
        smaller = parts.size.below(reserved.size)
        if smaller is None:
            return reserved
        reserved.close()
        parts = replace(parts, size=smaller)


class _Search:
    """Tries places on GPUs."""

    def __init__(self, parts: ModelParts, name: str, gpus: Sequence[Device]) -> None:
        self._parts = parts
        self._name = name
        self._gpus = gpus
        self._layers = parts.file.get(f"{parts.file.architecture}.block_count", int, 0) + 1

    def reserve(self) -> ReservedModel:
        """Return the best place that fits, or the last one that was asked for."""
        wishes, gpus = self._parts.gpus, self._gpus
        asked = wishes.num_gpu
        if asked is not None:
            is_whole = asked >= self._layers
            places = wishes.whole(gpus, self._layers - 1) if is_whole else wishes.some(gpus, asked)
            return self._best(places) or ReservedModel(self._parts, self._name, places[-1])
        whole = self._best(wishes.whole(gpus, self._layers - 1))
        if whole is not None:
            return whole
        for parts in self._scarce():
            if self._may_move_experts and (found := self._fewest_experts_on_cpu(parts)) is not None:
                return found
        for parts in self._scarce():
            if (found := self._most_layers(parts)) is not None:
                return found
        self._warn("%d of %d layers of %s", self._layers, self._layers)
        return _reserved(self._parts, "cpu")

    def _scarce(self) -> Sequence[ModelParts]:
        """Return the model in the sizes to try where devices have no room for all of it."""
        parts = self._parts
        if not isinstance(parts.size, Sizing):
            return [parts]
        usual = parts.size.scarce()
        sizes = [usual] if usual.longest == usual.least else [usual, replace(usual, longest=usual.least)]
        return [replace(parts, size=size) for size in sizes]

    @property
    def _may_move_experts(self) -> bool:
        """Whether memory decides where experts are."""
        file = self._parts.file
        has_experts = file.get(f"{file.architecture}.expert_count", int, 0) > 0
        return has_experts and self._parts.gpus.n_cpu_moe is None

    def _fewest_experts_on_cpu(self, parts: ModelParts) -> ReservedModel | None:
        """Return the place with all layers on GPUs but the experts of some; None if none fits.

        Most of the bytes of such a layer are experts, of which a token uses few.
        """
        wishes, layers = parts.gpus, self._layers
        place = wishes.whole(self._gpus, layers - 1)[-1]
        with_all, found = self._farthest(parts, lambda number: wishes.with_experts(place, layers - number))
        if found is None:
            return None
        if (hot := self._hot_experts(parts, place, found, with_all - 1)) is not None:
            found.close()
            return hot
        self._warn("the experts of %d of %d layers of %s", layers - with_all, layers - 1)
        return found

    def _hot_experts(
        self, parts: ModelParts, place: GPUOptions, found: ReservedModel, on_gpu: int
    ) -> ReservedModel | None:
        """Return the place with slots for the most chosen experts of all layers, if that is faster.

        found  the place with the experts of whole layers on GPUs, of `on_gpu` layers
        """
        whole = found.place
        if parts.gpus.gpu_experts is not None or whole is None:
            return None
        work = Work.of(parts.file, parts.network, found.types)
        place = parts.gpus.with_experts(place, ALL_LAYERS)
        for slots in slot_counts(work.experts, work.layers, on_gpu):
            at = replace(place, expert_slots=slots)
            hot = self._fitting(at, lambda at: ReservedModel(parts, self._name, at))
            if hot is not None:
                if not are_faster(
                    work, parts.file, self._gpus, _candidate(at, hot), _candidate(whole, found)
                ):
                    hot.close()
                    return None
                _log.warning(
                    "%s has no room for all experts of %s: it has %d of %d experts of each layer, those that "
                    "tokens choose most, and the processor computes the others",
                    *(", ".join(gpu.name for gpu in self._gpus), parts.file.path.name, slots, work.experts),
                )
                return hot
        return None

    def _most_layers(self, parts: ModelParts) -> ReservedModel | None:
        """Return the place with the most layers on GPUs, without experts if memory decides about these.

        None if none fits.
        """
        wishes, on_cpu = parts.gpus, self._layers if self._may_move_experts else 0
        most, found = self._farthest(
            parts, lambda number: wishes.with_experts(wishes.some(self._gpus, number)[-1], on_cpu)
        )
        if found is not None:
            self._warn("%d of %d layers of %s", self._layers - most, self._layers)
        return found

    def _farthest(
        self, parts: ModelParts, place: Callable[[int], GPUOptions]
    ) -> tuple[int, ReservedModel | None]:
        """Return the largest number of layers whose place fits, and the model there; 0 and None for none."""
        most, too_many, found = 0, self._layers, None
        while too_many - most > 1:
            number = (most + too_many) // 2
            fitting = self._fitting(place(number), lambda at: ReservedModel(parts, self._name, at))
            if fitting is None:
                too_many = number
                continue
            if found is not None:
                found.close()
            most, found = number, fitting
        return most, found

    def _warn(self, what: str, *numbers: int) -> None:
        names = ", ".join(gpu.name for gpu in self._gpus)
        _log.warning(
            f"{what} are on the processor, since %s has no room for them: a smaller context or fewer "
            "parallel sequences leave more of it",
            *(*numbers, self._parts.file.path.name, names),
        )

    def _best(self, places: Iterable[GPUOptions]) -> ReservedModel | None:
        """Return the first place that fits; None for none.

        A later one is better if only there the context is long enough for an agent, or longer at least.
        """
        best: ReservedModel | None = None
        size = self._parts.size
        for place in places:
            found = self._fitting(place, lambda at: _reserved(self._parts, self._name, at))
            if found is None:
                continue
            if best is not None and found.size.capacity <= best.size.capacity:
                found.close()
                continue
            if best is not None:
                best.close()
            best = found
            if not isinstance(size, Sizing) or found.size.capacity >= size.enough:
                break
        return best

    def _fitting(
        self, place: GPUOptions, reserve: Callable[[GPUOptions], ReservedModel]
    ) -> ReservedModel | None:
        """Return the model at a place; None where it does not fit.

        Raises UnsupportedError where one GPU with everything cannot have the model. A place with a part of it
        on each device may only be cut where the model cannot be, which counts as a place that does not fit.
        """
        try:
            reserved = reserve(place)
        except UnsupportedError:
            if len(place.numbers) == 1 and place.layers is None:
                raise
            return None
        if not reserved.needs.missing:
            return reserved
        reserved.close()
        return None


def _candidate(place: GPUOptions, reserved: ReservedModel) -> Candidate:
    needs = reserved.needs
    return Candidate(place, needs.available, sum(needs.in_files.values()))
