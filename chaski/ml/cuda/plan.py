"""Plans on a GPU. A graph's kernels are recorded once for sizes that need the same, and run with one call."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import OutOfMemoryError
from chaski.forks import keep_in_forks
from chaski.ml.arena import Buffer, aligned, placed
from chaski.ml.backend import Backend
from chaski.ml.cuda.device import GPU, KernelLaunch, Program, pack, ran_out
from chaski.ml.cuda.host_part import add_host_parts
from chaski.ml.cuda.lowering import (
    Check,
    Constant,
    Count,
    Derived,
    Double,
    Kernel,
    Lowering,
    Sizes,
    Staged,
    Step,
    largest_of,
    staged_for,
)
from chaski.ml.cuda.operations import HOST_OPERATIONS, lower_node, with_heads_apart
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.cuda.uploads import Uploads
from chaski.ml.cuda.workspace import Workspace
from chaski.ml.graph import Dim, Graph, width
from chaski.ml.plan import FromLaunch, Input, misfit

__all__ = ["CUDALaunch", "CUDAPlan"]

F32 = npt.NDArray[np.float32]

_ALIGNMENT = 256
# Results with rows of up to this many bytes, such as top logits, are copied to the host with each run.
_SHORT = 4096
# The copies of this many runs are kept; later copies reuse their memory.
_COPIES = 2
# The most recordings that stay, and the memory of the device that a kernel takes in each of
# them (NVIDIA/cccl#3768; not measured here). Fewer stay if the memory runs out.
_MOST_RECORDED = 32
_RECORDED_BYTES = 10 << 10


class _Work:
    """The kernels of a run by the plan's steps; None for steps that it does not need."""

    def __init__(self, kernels: tuple[Kernel | None, ...]) -> None:
        self.kernels = kernels


class CUDAPlan:
    """A graph that is compiled for a largest batch size, with all the memory that it will ever use.

    `host` computes the nodes that depend only on the inputs. `not_copied` lists the results that stay on the
    device until they are read. `bytes` is the memory of the plan in addition to `workspace`, which plans of
    passing graphs share.
    """

    def __init__(self, graph: Graph, gpu: GPU, host: Backend, workspace: Workspace | None = None) -> None:
        self._gpu = gpu
        graph = with_heads_apart(graph)
        lowering = Lowering(graph, gpu.device.cores, gpu.shared_memory)
        for name, node in graph.inputs.items():
            lowering.staged[node] = staged_for(name, node)
        host_parts = add_host_parts(graph, lowering, host)
        for node in graph.nodes:
            if node.op not in ("input", "reshape", *HOST_OPERATIONS):
                lower_node(lowering, node)
        lowering.finish(*lowering.waiting)
        self._steps: Sequence[Step] = lowering.steps
        self._checks: Sequence[Check] = list(lowering.checks)
        self._derived: Sequence[Derived] = [*host_parts, *lowering.derived]
        self._dims: Mapping[str, int] = lowering.dims
        self._forms = sorted(lowering.forms)
        self._inputs = {name: lowering.staged[node] for name, node in graph.inputs.items()}
        self._reads = [
            (name, staged.rows, np.dtype(staged.dtype), lowering.dim(graph.inputs[name]))
            for name, staged in self._inputs.items()
        ]
        outputs = {name: lowering.place(node) for name, node in graph.outputs.items()}
        self._offsets, arena = placed(_alive(self._steps, outputs.values()), _ALIGNMENT)
        self._outputs = {
            name: (outputs[name], lowering.dim(node), node) for name, node in graph.outputs.items()
        }
        self._widths = {name: 4 * width(node) for name, (_, _, node) in self._outputs.items()}
        self._copied = [name for name, row_bytes in self._widths.items() if row_bytes <= _SHORT]
        self.not_copied = [name for name in self._outputs if name not in self._copied]
        # Host memory that results are copied to, by the result and the number of the run's copies.
        self._landings: dict[tuple[str, int], F32] = {}
        # The uploads follow the arena, and the constants, which stay, follow the uploads.
        staged = [*self._inputs.values(), *(each for one in self._derived for each in one.targets)]
        self._uploads = Uploads(staged, list(self._dims), arena)
        self._used = aligned(self._uploads.end, _ALIGNMENT)
        self._constants, constant_bytes = _in_row(_constants(self._steps), 0)
        landing = max(map(self._landing_bytes, self.not_copied), default=0)
        shares = graph.is_passing and workspace is not None and workspace.reserve(self._used, landing)
        self._workspace = workspace if shares else None
        self.bytes = constant_bytes + (0 if shares else self._used)
        self.recorded_bytes = _MOST_RECORDED * _RECORDED_BYTES * (len(self._steps) + 1)
        self._address = self._constants_at = 0
        self._works: dict[tuple[int, ...], _Work] = {}
        self._distinct: dict[tuple[Kernel | None, ...], _Work] = {}
        self._recorded: OrderedDict[_Work, object] = OrderedDict()  # the last one ran last
        self._expected: set[_Work] = set()  # other threads compile its kernels
        self._newest_key: tuple[int, ...] = ()
        self._runs = 0
        self._newest: deque[weakref.ref[CUDALaunch]] = deque(maxlen=_COPIES)  # the last one is the newest
        keep_in_forks(self, gpu)

    def take(self) -> None:
        """Allocate the memory."""
        if self._address:
            return
        own = self._gpu.allocate(max(1, self.bytes))
        if self._workspace:
            self._workspace.take()
            self._address, self._constants_at = self._workspace.address, own
        else:
            self._address, self._constants_at = own, own + self._used
        self._uploads.take(self._gpu, self._address)
        uploading = []
        for constant, offset in self._constants.items():
            data = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8)
            staged = self._gpu.staging(data.size)
            staged[:] = data
            self._gpu.upload(self._constants_at + offset, staged)
            uploading.append(staged)
        self._gpu.wait_uploads()

    def release(self) -> None:
        """Free the memory."""
        if self._address:
            self._gpu.free(self._constants_at if self._workspace else self._address)
            self._address = 0
            while self._recorded:
                self._forget_oldest()
            self._landings.clear()

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> CUDALaunch:
        if inputs.keys() != self._inputs.keys():
            raise misfit(inputs, self._inputs)
        self.take()
        given = dict(sizes) if sizes else {}
        arrays, uploads, sources = self._read(inputs, given)
        for derived in self._derived:
            made, new_sizes = derived.make(arrays, given)
            given |= new_sizes
            uploads += made
        self._check(arrays, given)
        self._make_way()
        self._uploads.send(uploads, given, sources)
        key = tuple([_class_of(given[name], most) for name, most in self._dims.items()])
        try:
            key, recorded = self._recording(key)
            self._gpu.run(recorded)
            launch = CUDALaunch(self, given, self._runs % _COPIES)
            for name in self._copied:
                self._fetch(name, self._landing(name, launch, 0, None), 0)
        except OutOfMemoryError as error:
            raise ran_out(error) from error
        self._newest_key = key
        self._runs += 1
        self._newest.append(weakref.ref(launch))
        return launch

    def _recording(self, key: tuple[int, ...]) -> tuple[tuple[int, ...], object]:
        """Return the recorded work for sizes, with its sizes.

        While other threads compile its kernels, that is the work for larger sizes, if any is recorded, since
        kernels read how many rows there are. A new recording takes the place of the one that ran least
        recently.
        """
        work = self._work_of(key)
        if work not in self._recorded:
            programs = [kernel.program for kernel in work.kernels if kernel is not None]
            larger = None if self._gpu.is_ready(programs) else self._larger(key)
            if larger is None:
                self._recorded[work] = self._record(work)
            else:
                if work not in self._expected:
                    self._expected.add(work)
                    self._gpu.expect(programs)
                key, work = larger, self._works[larger]
        self._recorded.move_to_end(work)
        return key, self._recorded[work]

    def _work_of(self, key: tuple[int, ...]) -> _Work:
        """Return the kernels for sizes; the same object for all sizes that need the same kernels."""
        if key not in self._works:
            kernels = tuple([step.choose(self._sizes_of(key)) for step in self._steps])
            self._works[key] = self._distinct.setdefault(kernels, _Work(kernels))
        return self._works[key]

    def _larger(self, key: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return recorded sizes with room for these and the same forms of attention, if there are any."""
        is_form = [name in self._forms for name in self._dims]
        fitting = (
            known
            for known, work in self._works.items()
            if work in self._recorded
            and all(a == b if form else a >= b for a, b, form in zip(known, key, is_form, strict=True))
        )
        return min(fitting, default=None)

    def _record(self, work: _Work) -> object:
        """Record kernels. Earlier recordings are forgotten until there is room."""
        launches = self._launches(work)
        while len(self._recorded) >= _MOST_RECORDED:
            self._forget_oldest()
        while True:
            try:
                return self._gpu.record(launches)
            except OutOfMemoryError:
                if not self._recorded:
                    raise
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._gpu.forget(self._recorded.popitem(last=False)[1])

    def programs(self) -> Iterator[Program]:
        """Yield the programs of all sizes that runs are recorded for."""
        for sizes in self.all_sizes():
            kernels = (step.choose(sizes) for step in self._steps)
            yield from {kernel.program for kernel in kernels if kernel is not None}

    def all_sizes(self) -> Iterator[Sizes]:
        """Yield sizes from 1 to the largest, which runs are recorded for, with every form of attention."""
        most = max(self._dims.values(), default=1)
        forms = [range(1, self._dims[name] + 1) for name in self._forms]
        for exponent, *form in product(range(most.bit_length() + 1), *forms):
            sizes = {name: min(1 << exponent, most) for name, most in self._dims.items()}
            yield sizes | dict(zip(self._forms, form, strict=True))

    def wait(self) -> None:
        """Wait until the launched work is computed."""
        self._gpu.wait()

    def rows(self, output: str, launch: CUDALaunch, begin: int, end: int | None) -> F32:
        """Fetch rows of a result of a finished run, as a view that the second next run overwrites."""
        try:
            rows = self._landing(output, launch, begin, end)
        except OutOfMemoryError as error:
            raise ran_out(error) from error
        if output in self.not_copied:
            assert launch is self._newest[-1](), "the device has only the newest run of this result"
            self._fetch(output, rows, begin)
            self._gpu.wait()
        return rows

    def _make_way(self) -> None:
        """Save results that the next run overwrites: the newest on the device, and older ones on the host."""
        launches = [found() for found in self._newest]
        if len(launches) == _COPIES and launches[0] is not None:
            launches[0].keep(self._copied)
        if launches and launches[-1] is not None:
            launches[-1].overtake(self._gpu.mark)

    def _source(self, value: FromLaunch) -> tuple[int, int] | None:
        """Return an input's source on the device, address and row size; None to fetch it instead."""
        launch = value.launch
        if not isinstance(launch, CUDALaunch) or launch.plan._gpu is not self._gpu:
            return None
        return launch.plan._on_device(launch, value.output)

    def _on_device(self, launch: CUDALaunch, output: str) -> tuple[int, int] | None:
        """Return a result's address, and the elements of a row; None if a later run has overwritten it."""
        if not self._newest or launch is not self._newest[-1]():
            return None
        return self._address_of(self._outputs[output][0]), self._widths[output] // 4

    def _landing(self, output: str, launch: CUDALaunch, begin: int, end: int | None) -> F32:
        """Return the host memory for rows of a result."""
        _, dim, node = self._outputs[output]
        place = output, launch.copies if output in self._copied else 0
        if place not in self._landings:
            is_shared = self._workspace is not None and output in self.not_copied[:1]
            take = self._workspace.landing if is_shared and self._workspace else self._gpu.staging
            shape = [d.maximum if isinstance(d, Dim) else d for d in node.shape]
            self._landings[place] = take(self._landing_bytes(output)).view(np.float32).reshape(shape)
        size = launch.sizes[dim]
        return self._landings[place][begin : size if end is None else min(end, size)]

    def _landing_bytes(self, output: str) -> int:
        _, _, node = self._outputs[output]
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        return leading.maximum * self._widths[output]

    def _fetch(self, output: str, rows: F32, begin: int) -> None:
        """Begin to copy rows of a result, from `begin` on."""
        if rows.size:
            buffer, _, _ = self._outputs[output]
            self._gpu.fetch(self._address_of(buffer) + begin * self._widths[output], rows)

    @property
    def steps(self) -> Sequence[Step]:
        """The kernels of the plan, in order."""
        return self._steps

    @property
    def newest_sizes(self) -> Sizes:
        """The sizes that the newest run was recorded for."""
        return self._sizes_of(self._newest_key)

    def _sizes_of(self, key: tuple[int, ...]) -> Sizes:
        return dict(zip(self._dims, key, strict=True))

    def _read(
        self, inputs: Mapping[str, Input], sizes: dict[str, int]
    ) -> tuple[dict[str, npt.NDArray[Any]], list[npt.NDArray[Any]], dict[int, int]]:
        """Return the inputs as arrays, their uploads, and sources on the device; add their sizes to `sizes`.

        The sources are the addresses of results that elements are taken from, by the numbers of the inputs:
        see `Uploads.send`.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        uploads: list[npt.NDArray[Any]] = []
        sources = {}
        for name, most, dtype, dim in self._reads:
            value = inputs[name]
            size = len(value)
            if sizes.setdefault(dim, size) != size or size > most:
                raise ValueError(
                    f"input {name} has {size} rows; it needs {dim} = {sizes[dim]}, at most {most}"
                )
            source = self._source(value) if isinstance(value, FromLaunch) else None
            if isinstance(value, FromLaunch) and source is not None:
                sources[len(uploads)], width = source
                arrays[name] = value.values
                uploads.append(value.values.copy())
                uploads[-1][value.places] = value.rows * -width - (1 + value.column)
            else:
                arrays[name] = np.asarray(value, dtype)
                uploads.append(arrays[name])
        return arrays, uploads, sources

    def _check(self, arrays: Mapping[str, npt.NDArray[Any]], sizes: Mapping[str, int]) -> None:
        for name, limit, limit_dim in self._checks:
            array = arrays[name]
            if limit_dim is not None:
                limit = sizes[limit_dim]
            if array.size and largest_of(array) >= limit:
                raise ValueError(f"{name} has an index outside of 0 to {limit - 1}")

    def _launches(self, work: _Work) -> list[KernelLaunch]:
        launches = [self._uploads.launch()]
        chosen = [(step, kernel) for step, kernel in zip(self._steps, work.kernels, strict=True) if kernel]
        self._gpu.prepare(kernel.program for _, kernel in chosen)
        for step, kernel in chosen:
            compiled = self._gpu.kernel(kernel.program, kernel.name)
            argument = self._argument(step)
            launches.append(
                KernelLaunch(compiled, kernel.grid, kernel.threads, kernel.shared, argument, kernel.is_early)
            )
        return launches

    def _argument(self, step: Step) -> bytes:
        """Return the bytes of a kernel's argument struct."""
        format = ""
        values: list[Any] = []
        for argument in step.arguments:
            if isinstance(argument, KVStorage):
                format += "Pqqqq"
                values += argument.fields
            elif isinstance(argument, float):
                format += "f"
                values.append(argument)
            elif isinstance(argument, Double):
                format += "d"
                values.append(argument.value)
            elif isinstance(argument, int):
                format += "q"
                values.append(argument)
            else:
                format += "P"
                values.append(0 if argument is None else self._address_of(argument))
        return pack(f"{format}0q", values)

    def _address_of(self, argument: Any) -> int:
        match argument:
            case Buffer():
                return self._address + self._offsets[argument]
            case Count():
                return self._address + self._uploads.sizes_at + 8 * list(self._dims).index(argument.dim)
            case Constant():
                return self._constants_at + self._constants[argument]
            case Staged():
                return self._address + self._uploads.places[argument]
        address: int = argument.address
        return address


class CUDALaunch:
    """A run. Its results stay on the device until the next run, and its copies for one more run.

    `plan` is the plan that ran, `sizes` are its dimensions, and `copies` is the number of the run's copies.
    """

    __slots__ = ("__weakref__", "_dropped", "_kept", "_wait", "copies", "plan", "sizes")

    def __init__(self, plan: CUDAPlan, sizes: Mapping[str, int], copies: int) -> None:
        self.plan = plan
        self.sizes = sizes
        self.copies = copies
        self._wait: Callable[[], None] | None = plan.wait  # None when it is done
        self._kept: dict[str, F32] = {}
        self._dropped: set[str] = set()

    def wait(self) -> None:
        if self._wait is not None:
            self._wait()
            self._wait = None

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> F32:
        if output in self._kept:
            return self._kept[output][begin:end]
        self.wait()
        return self.plan.rows(output, self, begin, end)

    def drop(self, output: str) -> None:
        self._dropped.add(output)

    def overtake(self, mark: Callable[[], Callable[[], None]]) -> None:
        """Fetch results that only the device has, before the next run overwrites them; wait for `mark`."""
        self.keep(self.plan.not_copied)
        if self._wait is not None:
            self._wait = mark()

    def keep(self, outputs: Iterable[str]) -> None:
        """Copy results that may still be read, before they are overwritten."""
        for name in outputs:
            if name not in self._kept and name not in self._dropped:
                self._kept[name] = self.rows(name).copy()


@lru_cache(4096)
def _class_of(size: int, most: int) -> int:
    """Return the number of rows that kernels are recorded for: the next power of two, up to `most`."""
    return min(most, 1 << max(0, size - 1).bit_length())


def _alive(steps: Sequence[Step], kept: Iterator[Any] | Any) -> dict[Buffer, tuple[int, int]]:
    """Return the first and the last step that touch each buffer. Results are alive all the time."""
    last = max(0, len(steps) - 1)
    alive: dict[Buffer, tuple[int, int]] = {each: (0, last) for each in kept if isinstance(each, Buffer)}
    for index, step in enumerate(steps):
        for argument in step.arguments:
            if isinstance(argument, Buffer):
                first, until = alive.get(argument, (index, index))
                alive[argument] = first, max(until, index)
    return alive


def _constants(steps: Sequence[Step]) -> list[Constant]:
    found = (argument for step in steps for argument in step.arguments if isinstance(argument, Constant))
    return list(dict.fromkeys(found))


def _in_row(constants: Sequence[Constant], begin: int) -> tuple[dict[Constant, int], int]:
    """Place arrays one after the other -> the place of each, and the end."""
    places = {}
    for constant in constants:
        places[constant] = begin
        begin += aligned(constant.array.nbytes, _ALIGNMENT)
    return places, begin
