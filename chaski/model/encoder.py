"""An encoder of images compiled: recorded once, reserved for the largest tile, replayed for every one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.kvcache import KindMemory, MaskInputs
from chaski.ml import ops
from chaski.ml.backend import Backend, summed
from chaski.ml.graph import AnyMask, Dim, DType, Graph, KVBuffer, KVRole, Tensor
from chaski.model.multimodal import EncoderShape, Image, MultimodalProcessor, Tile

__all__ = ["EncoderProgram", "encoder_memory"]


class EncoderProgram:
    """One plan that encodes one tile at a time. `dtype` is that of the keys and values of its patches."""

    def __init__(self, vision: MultimodalProcessor, backend: Backend, dtype: DType) -> None:
        self.shape = vision.shape
        graph = Graph()
        patches, rows = Dim("patches", self.shape.max_patches), Dim("image_rows", self.shape.max_rows)
        self._history = _Patches.record(graph, patches, backend, self.shape, dtype)
        graph.output("image_rows", vision.encode_multimodal(graph, patches, rows, self._history))
        self._plan = backend.compile(graph)
        self._patches = [name for name, tensor in graph.inputs.items() if tensor.shape[0] == patches]

    def encode(self, image: Image) -> npt.NDArray[np.float32]:
        """The rows of an image (num_rows, row_size), a copy. Nothing else may be computed meanwhile."""
        rows = np.concatenate([self._encode(tile) for tile in image.tiles])
        return rows if image.order is None else rows[image.order]

    def _encode(self, tile: Tile) -> npt.NDArray[np.float32]:
        arrays = dict(tile.arrays)
        values = self._history.inputs(self._num_patches(tile), arrays.pop("spans", None)) | arrays
        return self._plan.launch(values, {"image_rows": tile.num_rows}).rows("image_rows").copy()

    def _num_patches(self, tile: Tile) -> int:
        return next(len(array) for name, array in tile.arrays.items() if name in self._patches)


def encoder_memory(backend: Backend, shape: EncoderShape, dtype: DType) -> KindMemory:
    """The memory of the keys and values of a tile's patches. Allocates nothing."""
    cells = backend.cache_config.padded(shape.max_patches)
    sizes = {KVRole.KEYS: shape.heads.key_size, KVRole.VALUES: shape.heads.value_size}
    num_bytes = summed(
        backend.kv_bytes(role, cells, shape.heads.heads, size, dtype) for role, size in sizes.items()
    )
    return KindMemory("patches of an image", 1, cells, num_bytes)


@dataclass(frozen=True, slots=True)
class _Patches:
    """The cache of an encoder: patches see all of their tile. Layers overwrite the keys of the one before."""

    keys: KVBuffer
    values: KVBuffer
    cells: Tensor
    masks: MaskInputs
    mask: AnyMask

    @classmethod
    def record(
        cls, graph: Graph, patches: Dim, backend: Backend, shape: EncoderShape, dtype: DType
    ) -> _Patches:
        cells = backend.cache_config.padded(shape.max_patches)
        heads = shape.heads
        masks = MaskInputs(backend.cache_config, cells, 1, shape.max_patches)
        listed = graph.input("cells", (patches,), DType.I32)
        return cls(
            backend.kv_buffer(KVRole.KEYS, cells, heads.heads, heads.key_size, dtype),
            backend.kv_buffer(KVRole.VALUES, cells, heads.heads, heads.value_size, dtype),
            listed,
            masks,
            masks.declare(graph, patches, shape.max_patches),
        )

    def inputs(self, count: int, spans: npt.NDArray[np.int32] | None) -> dict[str, npt.NDArray[Any]]:
        """Every patch of a tile of `count` sees all of them, unless the tile says by `spans` which."""
        cells = np.arange(count, dtype=np.int32)
        if spans is None:
            spans = np.tile(np.array([0, count, 0], np.int32), (count, 1))
        return {"cells": cells, **self.masks.values(cells, spans, np.zeros_like(cells))}

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, AnyMask]:
        return ops.store(k, self.cells, self.keys), ops.store(v, self.cells, self.values), self.mask
