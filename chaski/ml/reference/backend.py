"""The reference backend, which computes a graph node by node with the definitions in `ops`, in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import TensorInfo
from chaski.ml.backend import (
    HOST,
    ByDevice,
    CacheConfig,
    Device,
    DeviceMemory,
    Memory,
    ProgressCallback,
    stored_type,
)
from chaski.ml.graph import AdapterTable, Dim, DType, Graph, KVBuffer, KVRole, Operand, Shape, Tensor, Weight
from chaski.ml.machine import available_memory, cpu_name, physical_cores, total_memory
from chaski.ml.plan import FromLaunch, Input, misfit
from chaski.ml.reference.adapter_ops import ReferenceAdapterSlots
from chaski.ml.reference.cached_ops import Storage
from chaski.ml.reference.ops import DEFINITIONS

__all__ = ["ReferenceBackend"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]

_NO_REQUIREMENTS = CacheConfig()


class ReferenceBackend:
    """A backend in NumPy and float32. Key/value storage is float32 too, rounded to values of its type."""

    name = "reference"
    rule = "reference 1"
    default_kv_dtype = DType.F32
    stages = 1
    launches_ahead = False

    def __init__(self, cache_config: CacheConfig = _NO_REQUIREMENTS) -> None:
        """`cache_config`: the layout that caches must have, for tests; results do not depend on them."""
        self.cache_config = cache_config
        self._weights = 0
        self._cache = 0

    def devices(self) -> Sequence[Device]:
        return [Device(HOST, cpu_name(), physical_cores(), (), total_memory(), available_memory())]

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        for weight, info in weights:
            weight.handle = dequantize(info.data, info.type, info.shape)
            self._weights += 4 * int(np.prod(info.shape))

    def load(self, progress: ProgressCallback) -> None:
        progress(1.0)

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        is_permuted = self.cache_config.permuted_values and role is KVRole.VALUES
        shape = (heads, size, cells) if is_permuted else (cells, heads, size)
        storage = Storage(np.zeros(shape, np.float32), stored_type(role, size, dtype), role, is_permuted)
        self._cache += storage.rows.nbytes
        return KVBuffer(role, cells, heads, size, dtype, storage)

    def kv_bytes(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> ByDevice:
        return {HOST: 4 * cells * heads * size}

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> FloatRows:
        return FloatRows([buffer.handle for buffer in buffers])

    def compile(self, graph: Graph) -> ReferencePlan:
        return ReferencePlan(graph)

    def adapter_table(self, slots: int, matrices: int, max_width: int) -> AdapterTable:
        return AdapterTable(slots, matrices, max_width, ReferenceAdapterSlots())

    def sibling(self) -> ReferenceBackend:
        return ReferenceBackend(self.cache_config)

    def memory(self) -> Memory:
        return Memory((DeviceMemory(HOST, self._weights, self._cache),))

    def wait_loaded(self) -> None:
        """Return at once: `load` leaves nothing for later."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class FloatRows:
    """`CellRows` of float storages. A block has the rows of all storages, one storage after the other."""

    def __init__(self, storages: Sequence[object]) -> None:
        self._storages = [storage for storage in storages if isinstance(storage, Storage)]
        assert len(self._storages) == len(storages), "a buffer of another backend"

    def num_bytes(self, room: int) -> int:
        return room * sum(4 * storage.heads * storage.size for storage in self._storages)

    def read(self, cells: I32, block: U8, first: int, room: int) -> None:
        for storage, rows in self._each(block, room):
            rows[first : first + len(cells)] = storage.by_cell()[cells]

    def write(self, cells: I32, block: U8, first: int, room: int) -> None:
        for storage, rows in self._each(block, room):
            storage.by_cell()[cells] = rows[first : first + len(cells)]

    def _each(self, block: U8, room: int) -> Iterator[tuple[Storage, F32]]:
        """Yield each storage with its rows of a block: (room, heads, size)."""
        begin, floats = 0, block.view(np.float32)
        for storage in self._storages:
            end = begin + room * storage.heads * storage.size
            yield storage, floats[begin:end].reshape(room, storage.heads, storage.size)
            begin = end


_INPUT_TYPES: Mapping[DType, npt.DTypeLike] = {
    DType.I32: np.int32,
    DType.F32: np.float32,
    DType.F16: np.float16,
}


class ReferencePlan:
    """A plan that computes its graph when it is launched."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> ReferenceLaunch:
        return ReferenceLaunch(self._graph, inputs, sizes)


class ReferenceLaunch:
    """The results of a run."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None) -> None:
        if inputs.keys() != graph.inputs.keys():
            raise misfit(inputs, graph.inputs)
        self._sizes = dict(sizes or {})
        values: dict[Tensor, Any] = {}
        for name, node in graph.inputs.items():
            values[node] = self._read(name, node, inputs[name])
        for node in graph.nodes:
            if node.op != "input":
                values[node] = self._evaluate(node, values)
        self._outputs: Mapping[str, F32] = {name: values[node] for name, node in graph.outputs.items()}

    def wait(self) -> None:
        """Return at once: the results are computed already."""

    def rows(self, output: str, begin: int = 0, end: int | None = None) -> F32:
        return self._outputs[output][begin:end]

    def drop(self, output: str) -> None:
        """Do nothing: results are freed with the launch."""

    def _read(self, name: str, node: Tensor, value: Input) -> npt.NDArray[Any]:
        """Return an input's value in its type, and record the size of its leading dimension."""
        known = self._fetched(value) if isinstance(value, FromLaunch) else value
        array = np.array(known, _INPUT_TYPES[node.dtype])
        leading = node.shape[0]
        if isinstance(leading, Dim):
            size = self._sizes.setdefault(leading.name, len(array))
            if size != len(array) or size > leading.maximum:
                is_known = f"it needs {leading.name} = {size}, at most {leading.maximum}"
                raise ValueError(f"input {name} has {len(array)} rows; {is_known}")
        return array.reshape(self._resolve(node.shape))

    def _evaluate(self, node: Tensor, values: Mapping[Tensor, Any]) -> Any:
        operands = [self._value(operand, values) for operand in node.operands]
        if node.op == "reshape":
            return operands[0].reshape(self._resolve(node.shape))
        return DEFINITIONS[node.op](*operands, **node.attributes)

    def _value(self, operand: Operand, values: Mapping[Tensor, Any]) -> Any:
        return values[operand] if isinstance(operand, Tensor) else operand.handle

    def _fetched(self, value: FromLaunch) -> npt.NDArray[np.int32]:
        return value.fetch()

    def _resolve(self, shape: Shape) -> tuple[int, ...]:
        """Return a shape as numbers, with the sizes of this run."""
        return tuple(d if isinstance(d, int) else self._sizes[d.name] for d in shape)
