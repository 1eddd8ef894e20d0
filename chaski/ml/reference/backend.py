"""The reference backend: replays a graph node by node with the definitions in `ops`, in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import dequantize
from chaski.ml.backend import CacheConfig, Device, Memory, Progress, stored_type
from chaski.ml.graph import DType, Graph, KVBuffer, KVRole, Shape, Tensor, Weight
from chaski.ml.machine import available_memory, physical_cores, total_memory
from chaski.ml.reference.cached_ops import Storage
from chaski.ml.reference.ops import DEFINITIONS

__all__ = ["ReferenceBackend"]


_NO_WISHES = CacheConfig()


class ReferenceBackend:
    """Computes in NumPy, in float32. Key/value storage is float32 too, rounded to what its type can hold."""

    name = "reference"
    default_kv_dtype = DType.F32

    def __init__(self, cache_config: CacheConfig = _NO_WISHES) -> None:
        """`cache_config`: wishes that caches must fulfil, for tests; results do not depend on them."""
        self.cache_config = cache_config
        self._weights = 0
        self._cache = 0

    def devices(self) -> Sequence[Device]:
        return [Device("NumPy", "cpu", physical_cores(), (), total_memory(), available_memory())]

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        for weight, info in weights:
            weight.handle = dequantize(info.data, info.type, info.shape)
            self._weights += 4 * int(np.prod(info.shape))

    def load(self, progress: Progress) -> None:
        progress(1.0)

    def kv_buffer(self, role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> KVBuffer:
        is_permuted = self.cache_config.permuted_values and role is KVRole.VALUES
        shape = (heads, size, cells) if is_permuted else (cells, heads, size)
        storage = Storage(np.zeros(shape, np.float32), stored_type(role, size, dtype), role, is_permuted)
        self._cache += storage.rows.nbytes
        return KVBuffer(role, cells, heads, size, dtype, storage)

    def kv_bytes(self, role: KVRole, cells: int, heads: int, size: int, dtype: DType) -> int:
        return 4 * cells * heads * size

    def compile(self, graph: Graph) -> ReferencePlan:
        return ReferencePlan(graph)

    def sibling(self) -> ReferenceBackend:
        return ReferenceBackend(self.cache_config)

    def memory(self) -> Memory:
        return Memory(self._weights, self._cache, 0)

    def wait_loaded(self) -> None:
        """Nothing is left for later."""

    def close(self) -> None:
        """Nothing to release."""


_INPUT_TYPES: Mapping[DType, npt.DTypeLike] = {
    DType.I32: np.int32,
    DType.F32: np.float32,
    DType.F16: np.float16,
}


class ReferencePlan:
    """A graph with input buffers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.inputs: Mapping[str, npt.NDArray[Any]] = {
            name: np.zeros(_resolve(node.shape, None), _INPUT_TYPES[node.dtype])
            for name, node in graph.inputs.items()
        }
        self._outputs: dict[str, npt.NDArray[np.float32]] = {}

    def launch(self, sizes: Mapping[str, int]) -> None:
        self.run(sizes)

    def wait(self) -> None:
        """Nothing to wait for."""

    def run(self, sizes: Mapping[str, int]) -> None:
        values: dict[Tensor, Any] = {}
        for node in self._graph.nodes:
            values[node] = self._evaluate(node, values, sizes)
        self._outputs = {name: values[node] for name, node in self._graph.outputs.items()}

    def output(self, name: str) -> npt.NDArray[np.float32]:
        return self._outputs[name]

    def _evaluate(self, node: Tensor, values: Mapping[Tensor, Any], sizes: Mapping[str, int]) -> Any:
        if node.op == "input":
            whole = self.inputs[node.attributes["name"]]
            return whole[tuple(slice(size) for size in _resolve(node.shape, sizes))]
        operands: list[Any] = [values[x] if isinstance(x, Tensor) else x.handle for x in node.operands]
        if node.op == "reshape":
            return operands[0].reshape(_resolve(node.shape, sizes))
        return DEFINITIONS[node.op](*operands, **node.attributes)


def _resolve(shape: Shape, sizes: Mapping[str, int] | None) -> tuple[int, ...]:
    """The shape in numbers: with the run's sizes, or with every maximum when there are none."""
    return tuple(d if isinstance(d, int) else d.maximum if sizes is None else sizes[d.name] for d in shape)
