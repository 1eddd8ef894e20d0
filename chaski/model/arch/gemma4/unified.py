"""Gemma 4 12B's image encoder (Google 2026): large patches, one matrix, positions and norms; no layers."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import KVShape, LayerCache
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.nn import Embedding, LayerNorm, Module, PatchEmbedding
from chaski.model.arch.gemma4.image import (
    FROM_0_TO_1,
    image_layout,
    num_positions,
    read_patches,
    row_budget,
    sees_both_ways,
)
from chaski.model.arch.gemma4.vision import Projector
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, Image

_LAYER_NORM_EPS = 1e-5
_COLORS = 3


class Tower(Module):
    """The encoder. Norms come before the matrix, after it and after the positions (`patch_norm` 1 to 3)."""

    def __init__(self, patch_size: int, size: int, count: int) -> None:
        self.patch_embd = PatchEmbedding(patch_size, size)
        self.position_embd = Embedding(2 * count, size)
        self.position_embd.weight.stored = 2, count, size
        self.patch_norm = PatchNorms(_COLORS * patch_size**2, size)

    def __call__(self, graph: Graph, patches: Dim) -> Tensor:
        first, second, third = vars(self.patch_norm).values()
        x = graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32)
        x = second(self.patch_embd(first(x)))
        column, row_place = (graph.input(name, (patches,), DType.I32) for name in ("column", "row_place"))
        placed: Tensor = third(x + (self.position_embd(column) + self.position_embd(row_place)))
        return placed


class PatchNorms(Module):
    """The three norms of the tower; GGUF numbers them from 1."""

    def __init__(self, patch_elements: int, size: int) -> None:
        for number, width in (("1", patch_elements), ("2", size), ("3", size)):
            setattr(self, number, LayerNorm(width, _LAYER_NORM_EPS))


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`. Each patch is one row and does not see the others."""

    inline = True
    unused = ("a.", "mm.a.")

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        prefix = f"{file.architecture}.vision"
        size = file.get(f"{prefix}.embedding_length", int)
        square = file.get(f"{prefix}.projector.scale_factor", int, 3)
        self._patch_size = file.get(f"{prefix}.patch_size", int) * square
        self._max_rows = row_budget(file, self._patch_size)
        self._num_positions = num_positions(file, self._max_rows)
        self._normal = read_normal(file, FROM_0_TO_1)
        self.is_bidirectional = sees_both_ways(file, row_size)
        self.shape = EncoderShape(self._max_rows, self._max_rows, row_size, KVShape(1, 16, 16))
        self.v = Tower(self._patch_size, size, self._num_positions)
        eps = file.get(f"{prefix}.attention.layer_norm_epsilon", float, 1e-6)
        self.mm = Projector(size, row_size, eps)

    def read_image(self, data: bytes) -> Image:
        found = read_patches(data, self._patch_size, 1, self._max_rows, self._normal)
        arrays = {
            "pixels": found.pixels,
            "column": found.column,
            "row_place": found.row + self._num_positions,
        }
        return Image(arrays, len(found.row), image_layout(len(found.row)))

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        return self.mm(self.v(graph, patches))
