"""`GPUWishes`: the options of a user on GPUs, and the places of a model that they allow, the best first."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Sequence
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from chaski.env import Environment
from chaski.errors import OptionError
from chaski.ml.backend import HOST, Device, GPUOptions, Override

__all__ = ["ALL_LAYERS", "GPUWishes", "checked_split", "read_overrides"]

_log = logging.getLogger(__name__)

ALL_LAYERS = 999
"""A number of layers that stands for all."""

_EXPERTS = r"\.\w+_(?:ch)?exps\b"
_DEVICE = re.compile(r"CPU|CUDA(\d+)")


class GPUWishes(Struct, frozen=True):
    """The options of a user on GPUs. None and empty leave a choice to the memory that the GPUs have.

    num_gpu  number of trailing layers on GPUs, counting the output as one
    main_gpu  the number of the GPU that has the model where one is enough
    tensor_split  how much of the model each GPU takes, in the driver's order
    n_cpu_moe  number of leading layers whose experts are on the processor
    gpu_experts  number of experts of each of these layers that a GPU has as well, 0 for none
    overrides  tensors that the user wants on a device
    split  `layers` or `rows`, where several GPUs have all of a model
    spread  several GPUs share a model even if one GPU has room for it
    spared  bytes of each GPU that stay free
    """

    num_gpu: int | None = None
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int | None = None
    gpu_experts: int | None = None
    overrides: tuple[Override, ...] = ()
    split: str = "layers"
    spread: bool = False
    spared: int = 0

    @classmethod
    def of(
        cls,
        num_gpu: int | None,
        main_gpu: int | None,
        tensor_split: Sequence[float] | None,
        n_cpu_moe: int | None = None,
        cpu_moe: bool | None = None,
        override_tensor: str | Sequence[str] | None = None,
        gpu_experts: int | None = None,
    ) -> Self:
        """Fill in options that are None from the environment. Raises OptionError for invalid options."""
        environment = Environment.read()
        if n_cpu_moe is not None and n_cpu_moe < 0:
            raise OptionError(f"n_cpu_moe = {n_cpu_moe} must be at least 0")
        num_gpu = environment.num_gpu if num_gpu is None else num_gpu
        if n_cpu_moe is None:
            is_all = environment.cpu_moe if cpu_moe is None else cpu_moe
            n_cpu_moe = ALL_LAYERS if is_all else environment.n_cpu_moe
        elif cpu_moe:
            raise OptionError("cpu_moe and n_cpu_moe are two ways to place experts; set one of them")
        gpu_experts = environment.gpu_experts if gpu_experts is None else gpu_experts
        if gpu_experts is not None and gpu_experts < 0:
            raise OptionError(f"gpu_experts = {gpu_experts} must be at least 0")
        if gpu_experts and n_cpu_moe is None:
            n_cpu_moe = ALL_LAYERS
        overrides = environment.override_tensor if override_tensor is None else override_tensor
        return cls(
            None if num_gpu is None or num_gpu < 0 else num_gpu,
            environment.main_gpu if main_gpu is None else main_gpu,
            environment.tensor_split if tensor_split is None else checked_split(tensor_split),
            n_cpu_moe,
            gpu_experts,
            read_overrides(overrides),
            environment.split,
            environment.sched_spread,
            environment.gpu_overhead,
        )

    def whole(self, gpus: Sequence[Device], num_layers: int) -> Sequence[GPUOptions]:
        """Return the places for all of a model with that many layers, the best first.

        Experts that the user wants on the processor are there.

        Raises OptionError for no such GPU.
        """
        together = _on_at_most(num_layers, self.together(gpus))
        named = {each.device for each in self.overrides} - {HOST}
        if missing := sorted(named - {gpu.name for gpu in gpus}):
            raise OptionError(
                f"override_tensor names {_llama_name(missing[0])}, which is not one of the GPUs "
                f"here: {_listed(tuple(map(_number, gpus)))}"
            )
        if self.tensor_split or len(named) > 1 or (self.spread and len(gpus) > 1):
            return [self._overriding(together)]
        main = self.main_gpu
        if main is None:
            main = _number(max(gpus, key=lambda gpu: (gpu.name in named, gpu.available_bytes)))
        alone = GPUOptions((main,), spared=self.spared)
        if not named <= {f"cuda:{main}"}:
            return [self._overriding(together)]
        places = [alone, together] if len(gpus) > 1 else [alone]
        return [self._overriding(place) for place in places]

    def check_names(self, names: Iterable[str]) -> None:
        """Raise OptionError for an override that matches no name of a tensor."""
        known = list(names)
        for each in self.overrides:
            if not any(re.search(each.pattern, name) for name in known):
                raise OptionError(
                    f"override_tensor: {each.pattern!r:.100} matches no tensor of the model, such as "
                    f"{known[-1]}; `chaski show --tensors` lists the names"
                )

    def on_processor(self) -> None:
        """Note options that change nothing where the processor computes all.

        Raises OptionError for overrides that need a GPU.
        """
        named = sorted({each.device for each in self.overrides} - {HOST})
        if named:
            raise OptionError(
                f"override_tensor names {_llama_name(named[0])}, but no GPU computes this model; use CPU, or "
                "see `chaski info` for the GPUs of this machine"
            )
        if self.gpu_experts or self.n_cpu_moe:
            name = "gpu_experts" if self.gpu_experts else "n_cpu_moe"
            _log.warning("%s changes nothing, because no GPU computes this model", name)

    def together(self, gpus: Sequence[Device]) -> GPUOptions:
        """Return a place on all GPUs. Raises OptionError."""
        numbers = tuple(map(_number, gpus))
        if self.main_gpu not in (None, *numbers):
            raise OptionError(f"main_gpu = {self.main_gpu} must be one of the GPUs here: {_listed(numbers)}")
        shares = None
        if self.tensor_split:
            if len(self.tensor_split) > len(gpus):
                raise OptionError(
                    f"tensor_split has shares of {len(self.tensor_split)} GPUs; there are {_listed(numbers)}"
                )
            given = [(n, share) for n, share in zip(numbers, self.tensor_split, strict=False) if share]
            numbers, shares = tuple(n for n, _ in given), tuple(share for _, share in given)
        return GPUOptions(numbers, shares=shares, split=self.split, spared=self.spared)

    def some(self, gpus: Sequence[Device], layers: int) -> Sequence[GPUOptions]:
        """Return the places for that many layers, the best first: on the last of several GPUs."""
        return [replace(place, layers=layers, split="layers") for place in self.whole(gpus, len(gpus))]

    def _overriding(self, place: GPUOptions) -> GPUOptions:
        """Return a place with the overrides of the user."""
        if self.overrides:
            place = replace(place, overrides=self.overrides, split="layers")
        place = self.with_experts(place, self.n_cpu_moe or 0)
        return replace(place, expert_slots=self.gpu_experts or 0)

    @staticmethod
    def with_experts(place: GPUOptions, layers: int) -> GPUOptions:
        """Return a place with the experts of that many leading layers on the processor."""
        if not layers:
            return place
        numbers = r"\d+" if layers >= ALL_LAYERS else "|".join(map(str, range(layers)))
        moved = Override(rf"^blk\.(?:{numbers}){_EXPERTS}", HOST)
        return replace(place, overrides=(*place.overrides, moved), split="layers")


def read_overrides(given: str | Sequence[str]) -> tuple[Override, ...]:
    """Read overrides in llama.cpp's form: `PATTERN=DEVICE`, several separated by commas or in a list.

    The device is `CPU` or `CUDA` and the number of a GPU. Raises OptionError.
    """
    texts = [given] if isinstance(given, str) else given
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(map(_override, filter(None, parts)))


def _override(text: str) -> Override:
    pattern, equals, name = text.rpartition("=")
    device = _DEVICE.fullmatch(name)
    if not equals or not pattern or device is None:
        raise OptionError(
            f"override_tensor = {text!r:.100} must be PATTERN=DEVICE, where DEVICE is CPU, or CUDA and the "
            r"number of a GPU, such as blk\.(1|2)\.ffn_.*_exps=CPU"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"override_tensor: {pattern!r:.100} is not a regular expression: {error}") from None
    return Override(pattern, HOST if device[1] is None else f"cuda:{int(device[1])}")


def checked_split(shares: Sequence[float]) -> tuple[float, ...]:
    """Return shares of GPUs. Raises OptionError for an invalid value."""
    are_shares = all(isinstance(share, int | float) and 0 <= share < math.inf for share in shares)
    if not are_shares or not any(shares):
        raise OptionError(
            f"tensor_split = {list(shares)!r:.100} must be numbers of at least 0, one for each GPU, not all 0"
        )
    return tuple(map(float, shares))


def _on_at_most(num_layers: int, place: GPUOptions) -> GPUOptions:
    """Return a place on the GPUs with the largest shares, where a model has fewer layers than GPUs."""
    if place.split != "layers" or len(place.numbers) <= num_layers:
        return place
    shares = place.shares or (1.0,) * len(place.numbers)
    by_share = sorted(range(len(shares)), key=lambda index: -shares[index])
    kept = sorted(by_share[: max(1, num_layers)])
    numbers = tuple(place.numbers[index] for index in kept)
    return replace(place, numbers=numbers, shares=place.shares and tuple(shares[index] for index in kept))


def _llama_name(device: str) -> str:
    """Return llama.cpp's name of a device."""
    return device.upper().replace(":", "")


def _number(gpu: Device) -> int:
    return int(gpu.name.rpartition(":")[2])


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
