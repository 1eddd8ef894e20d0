"""A compiled image encoder: recorded once, replayed for every tile.

Tiles of more than `EncoderShape.max_at_once` patches are computed in pieces, with the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from chaski.kvcache import KindMemory, KVShape, LayerCache, MaskInputs
from chaski.ml import ops
from chaski.ml.backend import Backend, summed
from chaski.ml.graph import AnyMask, Dim, DType, Graph, KVBuffer, KVRole, Tensor
from chaski.ml.stages import StagedPlan, narrowed
from chaski.model.multimodal import EncoderShape, Encoding, FurtherAttention, Image, Tile

__all__ = ["EncoderProgram", "encoder_memory"]

I32 = npt.NDArray[np.int32]

_POOL, _WINDOWS = "pool.", "windows."
_PIECE = 128  # patches; the plans of all stages together have about the memory of 8,192 patches at once


class EncoderProgram:
    """A plan that encodes one tile at a time. `dtype` is that of the keys and values of its patches."""

    def __init__(self, vision: Encoding, backend: Backend, dtype: DType) -> None:
        self.shape = vision.shape
        graph = Graph()
        patches, rows = Dim("patches", self.shape.max_patches), Dim("image_rows", self.shape.max_rows)
        self._history = _Patches.record(graph, (patches, rows), backend, self.shape, dtype)
        graph.output("image_rows", vision.encode_multimodal(graph, patches, rows, self._history))
        self._patches = [name for name, tensor in graph.inputs.items() if tensor.shape[0] == patches]
        most, at_once = self.shape.max_patches, self.shape.max_at_once
        self._stages = None
        if most > at_once:
            self._stages = StagedPlan(graph, backend, {"patches": _PIECE, "image_rows": _PIECE})
            graph = narrowed(
                graph, {"patches": at_once, "image_rows": -(-self.shape.max_rows * at_once // most)}
            )
        self._plan = backend.compile(graph)

    def encode(self, image: Image) -> npt.NDArray[np.float32]:
        """Return a copy of an image's rows (num_rows, row_size). No other computation may run meanwhile."""
        rows = np.concatenate([self._encode(tile) for tile in image.tiles])
        return rows if image.order is None else rows[image.order]

    def _encode(self, tile: Tile) -> npt.NDArray[np.float32]:
        arrays = dict(tile.arrays)
        count = self._num_patches(tile)
        num_queries = self.shape.pool_queries or tile.num_rows
        values = self._history.inputs(count, arrays.pop("spans", None), num_queries)
        values |= self._history.window_inputs(arrays.pop("windows", None))
        for name, further in self._history.others.items():
            values |= further.inputs(name, arrays.pop(f"{name} spans"))
        values |= arrays
        sizes = {"image_rows": tile.num_rows}
        if self._stages is not None and count > self.shape.max_at_once:
            return self._stages.run(values, {"patches": count, **sizes})["image_rows"]
        return self._plan.launch(values, sizes).rows("image_rows").copy()

    def _num_patches(self, tile: Tile) -> int:
        return next(len(array) for name, array in tile.arrays.items() if name in self._patches)


def encoder_memory(backend: Backend, shape: EncoderShape, dtype: DType) -> KindMemory:
    """Return the memory for the keys and values of a tile's patches. Allocates nothing."""
    cells = backend.cache_config.padded(shape.max_patches)
    kept = [(cells, heads) for heads in (shape.heads, shape.pool) if heads is not None]
    kept += [(backend.cache_config.padded(each.max_cells), each.heads) for each in shape.further]
    num_bytes = summed(
        backend.kv_bytes(role, count, heads.heads, size, dtype)
        for count, heads in kept
        for role, size in ((KVRole.KEYS, heads.key_size), (KVRole.VALUES, heads.value_size))
    )
    return KindMemory("patches of an image", 1, cells, num_bytes)


class _Cells(Struct, frozen=True):
    """The keys and values of a tile's patches for one attention, and the mask of its queries."""

    keys: KVBuffer
    values: KVBuffer
    cells: Tensor
    masks: MaskInputs
    mask: AnyMask

    @classmethod
    def reserve(
        cls, backend: Backend, heads: KVShape, dtype: DType, cells: Tensor, masks: MaskInputs, mask: AnyMask
    ) -> _Cells:
        sizes = ((KVRole.KEYS, heads.key_size), (KVRole.VALUES, heads.value_size))
        keys, values = (
            backend.kv_buffer(role, masks.num_cells, heads.heads, size, dtype) for role, size in sizes
        )
        return cls(keys, values, cells, masks, mask)

    @classmethod
    def of_further(cls, graph: Graph, backend: Backend, attention: FurtherAttention, dtype: DType) -> _Cells:
        name, most = attention.name, attention.max_cells
        dim = Dim(name, most)
        masks = MaskInputs(backend.cache_config, backend.cache_config.padded(most), 1, most)
        cells = graph.input(f"{name}.cells", (dim,), DType.I32)
        mask = masks.declare(graph, dim, most, f"{name}.")
        return cls.reserve(backend, attention.heads, dtype, cells, masks, mask)

    def inputs(self, name: str, spans: I32) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of a further attention: state i sees states spans[i, 0] to spans[i, 1] - 1."""
        cells = np.arange(len(spans), dtype=np.int32)
        seen = np.ascontiguousarray(spans[:, [0, 1, 0]])
        found = {"cells": cells, **self.masks.values(cells, seen, np.zeros_like(cells))}
        return {f"{name}.{key}": value for key, value in found.items()}

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        assert v is not None, "patches have values"
        return ops.store(k, self.cells, self.keys), ops.store(v, self.cells, self.values), self.mask


class _Patches(Struct):
    """The cache of an encoder: patches see their whole tile. Each layer overwrites the keys of the last."""

    graph: Graph
    patches: Dim
    layers: _Cells
    pooling: _Cells | None
    others: dict[str, _Cells]
    windowed: _Cells | None = None

    @classmethod
    def record(
        cls, graph: Graph, dims: tuple[Dim, Dim], backend: Backend, shape: EncoderShape, dtype: DType
    ) -> _Patches:
        patches, rows = dims
        most = shape.max_patches
        masks = MaskInputs(backend.cache_config, backend.cache_config.padded(most), 1, most)
        cells = graph.input("cells", (patches,), DType.I32)
        mask = masks.declare(graph, patches, most)
        layers = _Cells.reserve(backend, shape.heads, dtype, cells, masks, mask)
        others = {each.name: _Cells.of_further(graph, backend, each, dtype) for each in shape.further}
        if shape.pool is None:
            return cls(graph, patches, layers, None, others)
        mask = masks.declare(graph, shape.queries_of_pool(rows), most, _POOL)
        pooling = _Cells.reserve(backend, shape.pool, dtype, cells, masks, mask)
        return cls(graph, patches, layers, pooling, others)

    def inputs(
        self, count: int, spans: npt.NDArray[np.int32] | None, num_queries: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs for a tile of `count` patches. Each sees all, or those in its row of `spans`."""
        cells = np.arange(count, dtype=np.int32)
        masks = self.layers.masks
        every = np.array([[0, count, 0]], np.int32)
        spans = every.repeat(count, axis=0) if spans is None else spans
        found = {"cells": cells, **masks.values(cells, spans, np.zeros_like(cells))}
        if self.pooling is not None:
            seen = masks.values(cells, every.repeat(num_queries, axis=0), np.zeros(num_queries, np.int32))
            found |= {f"{_POOL}{name}": value for name, value in seen.items()}
        return found

    def update(self, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, AnyMask]:
        return self.layers.update(k, v)

    def windows(self) -> LayerCache:
        if self.windowed is None:
            mask = self.layers.masks.declare(self.graph, self.patches, self.patches.maximum, _WINDOWS)
            self.windowed = replace(self.layers, mask=mask)
        return self.windowed

    def window_inputs(self, windows: I32 | None) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs for `windows`: patch i sees patches windows[i, 0] to windows[i, 1] - 1."""
        if self.windowed is None:
            return {}
        assert windows is not None, "images for an encoder with windows contain windows"
        cells = np.arange(len(windows), dtype=np.int32)
        spans = np.ascontiguousarray(windows[:, [0, 1, 0]])
        found = self.windowed.masks.values(cells, spans, np.zeros_like(cells))
        return {f"{_WINDOWS}{name}": value for name, value in found.items()}

    def further(self, name: str) -> LayerCache:
        return self.others[name]

    def pool(self) -> LayerCache:
        assert self.pooling is not None, "EncoderShape.pool has its heads"
        return self.pooling
