"""A device that computes by the reference's definitions, but hides its data.

Its data are behind handles that are not arrays, so code that treats one as a host array fails. It computes
only when a caller waits. Until then launched runs are in flight, and tests notice inputs that are written too
late and results that are read too early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski.errors import UnsupportedError
from chaski.formats.gguf import TensorInfo
from chaski.ml.backend import ByDevice, CacheConfig, CellRows, Device, Memory, ProgressCallback
from chaski.ml.graph import AdapterTable, DType, Graph, KVBuffer, KVRole, Operand, Tensor, Weight
from chaski.ml.plan import FromLaunch, Input
from chaski.ml.reference import ReferenceBackend
from chaski.ml.reference.backend import ReferenceLaunch

from .devices import Devices, Holding, layer_of

__all__ = ["ForeignBackend", "ForeignLaunch", "OnDevice"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]


class OnDevice:
    """A handle of data on the device."""

    __slots__ = ("_content",)

    def __init__(self, content: object) -> None:
        self._content = content

    def _refuse(self, *arguments: object, **options: object) -> NoReturn:
        raise TypeError("this lies on the device, and is no array on the host")

    __array__ = __buffer__ = __len__ = __iter__ = __getitem__ = __setitem__ = _refuse


def _content(handle: object) -> Any:
    """Return the data of a handle; only the device may call this."""
    assert isinstance(handle, OnDevice), f"{handle!r} was not placed on the device"
    return handle._content


class ForeignBackend:
    """A backend whose storage and computation are the reference's, behind handles."""

    rule = "foreign"
    default_kv_dtype = DType.F32
    stages = 1
    launches_ahead = True

    def __init__(self, name: str, cache_config: CacheConfig, devices: Devices) -> None:
        self.name = name
        self.cache_config = cache_config
        self._devices = devices
        self._holding = Holding(devices)
        self._device = ReferenceBackend(cache_config)
        self._queue: deque[ForeignLaunch] = deque()

    def devices(self) -> Sequence[Device]:
        return self._devices.listed()

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        self._device.place(weights)
        layers = [layer_of(info.name) for _, info in weights]
        self._holding.num_layers = 1 + max((layer for layer in layers if layer is not None), default=0)
        for (weight, info), layer in zip(weights, layers, strict=True):
            self._holding.weights[self._holding.device(layer)] += 4 * int(np.prod(info.shape))
            weight.handle = OnDevice(weight.handle)

    def load(self, progress: ProgressCallback) -> None:
        self._holding.take()
        self._device.load(progress)

    def wait_loaded(self) -> None:
        self._device.wait_loaded()

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        assert role is KVRole.STATES or cells == self.cache_config.padded(cells), "a wish was not fulfilled"
        buffer = self._device.kv_buffer(role, cells, heads, size, dtype)
        self._holding.cache.update(self.kv_bytes(role, cells, heads, size, dtype, layer))
        return replace(buffer, handle=OnDevice(buffer.handle))

    def kv_bytes(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> ByDevice:
        return {self._holding.device(layer): 4 * cells * heads * size}

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> ForeignRows:
        known = [replace(buffer, handle=_content(buffer.handle)) for buffer in buffers]
        return ForeignRows(self._device.cell_rows(known), self._queue)

    def compile(self, graph: Graph) -> ForeignPlan:
        self._holding.add_workspace()
        return ForeignPlan(graph, self._queue)

    def adapter_table(self, slots: int, matrices: int, max_width: int) -> AdapterTable:
        raise UnsupportedError("this device does not apply adapters")

    def sibling(self) -> ForeignBackend:
        return ForeignBackend(self.name, self.cache_config, self._devices)

    def memory(self) -> Memory:
        return self._holding.memory()

    def close(self) -> None:
        self._holding.give_back()
        self._queue.clear()


class ForeignRows:
    """Rows on the device, which must not be copied while runs are in flight."""

    def __init__(self, rows: CellRows, queue: deque[ForeignLaunch]) -> None:
        self._rows = rows
        self._queue = queue

    def num_bytes(self, room: int) -> int:
        return self._rows.num_bytes(room)

    def read(self, cells: I32, block: U8, first: int, room: int) -> Future[None] | None:
        assert not self._queue, "something is still computed"
        return self._rows.read(cells, block, first, room)

    def write(self, cells: I32, block: U8, first: int, room: int) -> None:
        assert not self._queue, "something is still computed"
        self._rows.write(cells, block, first, room)


class ForeignPlan:
    """A graph whose runs are queued."""

    def __init__(self, graph: Graph, queue: deque[ForeignLaunch]) -> None:
        self._graph = graph
        self._queue = queue

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> ForeignLaunch:
        copies = {
            name: replace(value, values=value.values.copy())
            if isinstance(value, FromLaunch)
            else np.array(value)
            for name, value in inputs.items()
        }
        launch = ForeignLaunch(self._graph, copies, sizes, self._queue)
        self._queue.append(launch)
        return launch


class ForeignLaunch:
    """A run that is computed, with all earlier runs, when a caller waits for it."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Input],
        sizes: Mapping[str, int] | None,
        queue: deque[ForeignLaunch],
    ) -> None:
        self._job = graph, inputs, sizes
        self._queue = queue
        self._computed: ReferenceLaunch | None = None
        self._failure: Exception | None = None
        self.fetched: list[tuple[str, int]] = []
        """What left the device: names of results, and how many rows of them."""
        self.dropped: set[str] = set()

    def wait(self) -> None:
        while self._computed is None:
            if self._failure is not None:
                raise self._failure
            first = self._queue.popleft()
            try:
                first._computed = _DeviceLaunch(*first._job)
            except Exception as error:
                first._failure = error  # for the caller that waits for it

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> F32:
        assert output not in self.dropped, "nobody was to fetch it any more"
        found = self.on_device(output)[begin:end].copy()
        self.fetched.append((output, len(found)))
        return found

    def drop(self, output: str) -> None:
        self.dropped.add(output)

    def on_device(self, output: str) -> F32:
        """Return a result for the device itself."""
        self.wait()
        assert self._computed is not None
        return self._computed.rows(output)


class _DeviceLaunch(ReferenceLaunch):
    """A run on the device, which resolves handles."""

    def _value(self, operand: Operand, values: Mapping[Tensor, Any]) -> Any:
        return values[operand] if isinstance(operand, Tensor) else _content(operand.handle)

    def _fetched(self, value: FromLaunch) -> npt.NDArray[np.int32]:
        assert isinstance(value.launch, ForeignLaunch)
        found = value.launch.on_device(value.output)
        filled = value.values.copy()
        filled[value.places] = found.reshape(len(found), -1)[value.rows, value.column]
        return filled
