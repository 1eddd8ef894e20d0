"""Plans on a GPU: a graph's kernels, recorded once for each class of sizes, and run with one call."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.errors import OutOfMemoryError
from chaski.forks import keep_in_forks
from chaski.ml.arena import Buffer, aligned, placed
from chaski.ml.backend import Backend
from chaski.ml.cuda.device import GPU, KernelLaunch, pack, ran_out
from chaski.ml.cuda.host_part import add_host_parts
from chaski.ml.cuda.lowering import (
    Check,
    Constant,
    Count,
    Derived,
    Double,
    Lowering,
    Sizes,
    Staged,
    Step,
    largest_of,
    staged_for,
)
from chaski.ml.cuda.operations import HOST_OPERATIONS, lower_node
from chaski.ml.cuda.storage import KVStorage
from chaski.ml.cuda.uploads import Uploads
from chaski.ml.graph import Dim, Graph, width
from chaski.ml.plan import FromLaunch, Input, misfit

__all__ = ["CUDALaunch", "CUDAPlan"]

F32 = npt.NDArray[np.float32]

_ALIGNMENT = 256
# Results with rows of up to this many bytes, such as top logits, are copied to the host with each run.
_SHORT = 4096
# The copies of this many runs are kept; later ones are made in their places.
_COPIES = 2


class CUDAPlan:
    """A graph compiled for one batch size at most, with all the memory that it will ever use.

    `host` computes what depends on the inputs only. `not_copied` are the results that stay on the device
    until they are read.
    """

    def __init__(self, graph: Graph, gpu: GPU, host: Backend) -> None:
        self._gpu = gpu
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
        # Memory of the host that results are copied to, by the number of a run's copies.
        self._landings: dict[tuple[str, int], F32] = {}
        # After the arena lie constants, and then the uploads.
        staged = [*self._inputs.values(), *(each for one in self._derived for each in one.targets)]
        self._constants, begin = _in_row(_constants(self._steps), arena)
        self._uploads = Uploads(staged, list(self._dims), begin)
        self.bytes = self._uploads.end
        self._address = 0
        self._recorded: dict[tuple[int, ...], object] = {}
        self._newest_key: tuple[int, ...] = ()
        self._runs = 0
        self._newest: deque[weakref.ref[CUDALaunch]] = deque(maxlen=_COPIES)  # the last one is the newest
        keep_in_forks(self, gpu)

    def take(self) -> None:
        """Take the memory."""
        if self._address:
            return
        self._address = self._gpu.allocate(self.bytes)
        self._uploads.take(self._gpu, self._address)
        uploading = []
        for constant, offset in self._constants.items():
            data = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8)
            staged = self._gpu.staging(data.size)
            staged[:] = data
            self._gpu.upload(self._address + offset, staged)
            uploading.append(staged)
        self._gpu.wait_uploads()

    def release(self) -> None:
        """Give the memory back."""
        if self._address:
            self._gpu.free(self._address)
            self._address = 0
            self._recorded.clear()
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
            if key not in self._recorded:
                self._recorded[key] = self._gpu.record(self._launches(self._sizes_of(key)))
            self._gpu.run(self._recorded[key])
            launch = CUDALaunch(self, given, self._runs % _COPIES)
            for name in self._copied:
                self._fetch(name, self._landing(name, launch, 0, None), 0)
        except OutOfMemoryError as error:
            raise ran_out(error) from error
        self._newest_key = key
        self._runs += 1
        self._newest.append(weakref.ref(launch))
        return launch

    def wait(self) -> None:
        """Wait until the launched work is computed."""
        self._gpu.wait()

    def rows(self, output: str, launch: CUDALaunch, begin: int, end: int | None) -> F32:
        """Fetch rows of a result of a run that is done: a view that the next but one overwrites."""
        try:
            rows = self._landing(output, launch, begin, end)
        except OutOfMemoryError as error:
            raise ran_out(error) from error
        if output in self.not_copied:
            assert launch is self._newest[-1](), "a result of which the device has the newest only"
            self._fetch(output, rows, begin)
            self._gpu.wait()
        return rows

    def _make_way(self) -> None:
        """Let the next run overwrite the newest results on the device, and older ones on the host."""
        launches = [found() for found in self._newest]
        if len(launches) == _COPIES and launches[0] is not None:
            launches[0].keep(self._copied)
        if launches and launches[-1] is not None:
            launches[-1].overtake(self._gpu.mark)

    def _source(self, value: FromLaunch) -> tuple[int, int] | None:
        """Where the device has what an input comes from, and the elements of a row; None to fetch it."""
        launch = value.launch
        if not isinstance(launch, CUDALaunch) or launch.plan._gpu is not self._gpu:
            return None
        return launch.plan._on_device(launch, value.output)

    def _on_device(self, launch: CUDALaunch, output: str) -> tuple[int, int] | None:
        """The address of a result, and the elements of a row; None where a later run has overwritten it."""
        if not self._newest or launch is not self._newest[-1]():
            return None
        return self._address_of(self._outputs[output][0]), self._widths[output] // 4

    def _landing(self, output: str, launch: CUDALaunch, begin: int, end: int | None) -> F32:
        """Return where rows of a result go on the host."""
        _, dim, node = self._outputs[output]
        place = output, launch.copies if output in self._copied else 0
        if place not in self._landings:
            shape = [d.maximum if isinstance(d, Dim) else d for d in node.shape]
            staged = self._gpu.staging(4 * math.prod(shape))
            self._landings[place] = staged.view(np.float32).reshape(shape)
        size = launch.sizes[dim]
        return self._landings[place][begin : size if end is None else min(end, size)]

    def _fetch(self, output: str, rows: F32, begin: int) -> None:
        """Begin to copy rows of a result, from `begin` on."""
        if rows.size:
            buffer, _, _ = self._outputs[output]
            self._gpu.fetch(self._address_of(buffer) + begin * self._widths[output], rows)

    @property
    def steps(self) -> Sequence[Step]:
        """Its kernels, in order."""
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
        """Return the inputs as arrays, and their uploads; their sizes are added to `sizes`.

        The last of what is returned are the addresses of results that elements are taken from, by the numbers
        of the inputs: see `Uploads.send`.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        uploads: list[npt.NDArray[Any]] = []
        sources = {}
        for name, most, dtype, dim in self._reads:
            value = inputs[name]
            size = len(value)
            if sizes.setdefault(dim, size) != size or size > most:
                raise ValueError(f"input {name}: {size} rows, where {dim} is {sizes[dim]}, at most {most}")
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

    def _launches(self, sizes: Sizes) -> list[KernelLaunch]:
        launches = [self._uploads.launch()]
        chosen = [(step, step.choose(sizes)) for step in self._steps]
        self._gpu.prepare(kernel.program for _, kernel in chosen if kernel is not None)
        for step, kernel in chosen:
            if kernel is not None:
                compiled = self._gpu.kernel(kernel.program, kernel.name)
                argument = self._argument(step)
                launches.append(
                    KernelLaunch(
                        compiled, kernel.grid, kernel.threads, kernel.shared, argument, kernel.is_early
                    )
                )
        return launches

    def _argument(self, step: Step) -> bytes:
        """The bytes of the struct that a kernel takes."""
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
                return self._address + self._constants[argument]
            case Staged():
                return self._address + self._uploads.places[argument]
        address: int = argument.address
        return address


class CUDALaunch:
    """A run, whose results lie on the device until the next one, and those that are copied until one more.

    `plan` is the one that ran, `sizes` are those of its dimensions, and `copies` says where its copies go.
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
        """Fetch what only the device has before the next run overwrites it; wait for no more than `mark`."""
        self.keep(self.plan.not_copied)
        if self._wait is not None:
            self._wait = mark()

    def keep(self, outputs: Iterable[str]) -> None:
        """Keep results that may still be read, before they are overwritten."""
        for name in outputs:
            if name not in self._kept and name not in self._dropped:
                self._kept[name] = self.rows(name).copy()


@lru_cache(4096)
def _class_of(size: int, most: int) -> int:
    """The next power of two, at most the maximum: kernels are recorded for that many rows."""
    return min(most, 1 << max(0, size - 1).bit_length())


def _alive(steps: Sequence[Step], kept: Iterator[Any] | Any) -> dict[Buffer, tuple[int, int]]:
    """The first and the last step that touch each buffer; results are alive all the time."""
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
    """Places for arrays one after the other -> the place of each, and the end."""
    places = {}
    for constant in constants:
        places[constant] = begin
        begin += aligned(constant.array.nbytes, _ALIGNMENT)
    return places, begin
