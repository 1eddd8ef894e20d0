"""MiniCPM-V 2.6, 4 and 4.5 (Yao et al. 2024): SigLIP on slices of an image, and rows that attend to patches.

Each slice keeps its proportions and makes as many rows as there are learned queries. The prompt spells slices
as the published processor does, preceded by the number of the image, which llama.cpp omits.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import numpy as np
import numpy.typing as npt

from chaski.errors import ImageError, ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import Values, in_slices, open_image, patches
from chaski.kvcache import KVShape
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import LayerNorm, Linear, Module, attention
from chaski.model.multimodal import IMAGE_NUMBER, EncoderShape, Image, PatchHistory, Tile
from chaski.model.projectors.siglip import SigLIPConfig, Tower

_VERSIONS = (3, 4, 5, 6, 100045)  # values of `clip.minicpmv_version` from MiniCPM-V 2.6 on
_MAX_SLICES = 9
_HEAD_SIZE = 128
_EPS = 1e-6
_ROPE_BASE = 10000
_MOST = 2  # times the patches of a square: narrow pictures need more, as a side has at least one patch


class Attention(Module):
    def __init__(self, size: int) -> None:
        self.q, self.k, self.v, self.out = (Linear(size, size) for _ in range(4))


class Resampler(Module):
    """Learned queries that attend to patches, whose keys include sines and cosines of column and row."""

    unused = ("pos_embed_k",)  # the same values, for the first 70 columns and rows

    def __init__(self, num_queries: int, patch_size: int, size: int) -> None:
        self._size = size
        self.query = Weight((num_queries, size))
        self.kv = Linear(patch_size, size)
        self.ln_q, self.ln_kv, self.ln_post = (LayerNorm(size, _EPS) for _ in range(3))
        self.attn = Attention(size)
        self.proj = Linear(size, size)

    def __call__(self, graph: Graph, x: Tensor, rows: Dim, history: PatchHistory) -> Tensor:
        heads = self._size // _HEAD_SIZE, _HEAD_SIZE
        x = self.ln_kv(self.kv(x))
        query = ops.embedding(graph.input("query", (rows,), DType.I32), self.query)
        q = self.attn.q(self.ln_q(query)).reshape(*heads)
        k = self.attn.k(x + self._places(graph, x)).reshape(*heads)
        v = self.attn.v(x).reshape(*heads)
        seen = attention(q, k, v, history.pool(), scale=_HEAD_SIZE**-0.5)
        return self.proj(self.ln_post(self.attn.out(seen)))

    def _places(self, graph: Graph, x: Tensor) -> Tensor:
        """Return the embedding of each patch's column, concatenated with that of its row."""
        patches, half = x.shape[0], self._size // 2
        assert isinstance(patches, Dim)
        parts = []
        for way in ("column", "row"):
            table = graph.input(f"{way}_waves", (Dim(f"{way}s", patches.maximum), half), DType.F32)
            parts.append(table.rows(graph.input(way, (patches,), DType.I32)))
        return ops.concat([(part, index * half, 1) for index, part in enumerate(parts)])


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        version = file.get(f"{file.architecture}.minicpmv_version", int, 0)
        if version not in _VERSIONS:
            known = ", ".join(map(str, _VERSIONS))
            raise UnsupportedError(
                f"{file.path}: minicpmv_version {version} is not supported; supported from MiniCPM-V 2.6 on: "
                f"{known}"
            )
        if row_size % _HEAD_SIZE:
            raise ModelError(
                f"{file.path}: rows of {row_size} elements cannot be split into heads of {_HEAD_SIZE}"
            )
        self._config = c = SigLIPConfig.read(file)
        self._row_size = row_size
        self._num_rows = _rows_of(file, "resampler.query")
        num_positions = _rows_of(file, "v.position_embd.weight")
        self._positions = isqrt(num_positions)
        pool = KVShape(row_size // _HEAD_SIZE, _HEAD_SIZE, _HEAD_SIZE)
        most = _MOST * c.num_patches
        self.shape = EncoderShape(most, self._num_rows, row_size, c.heads, 1 + _MAX_SLICES, pool)
        self.v = Tower(c, num_positions)
        self.resampler = Resampler(self._num_rows, c.hidden_size, row_size)

    def read_image(self, data: bytes) -> Image:
        c = self._config
        slices, grid = in_slices(open_image(data), c.edge, c.patch_size, _MAX_SLICES, c.normal)
        return Image.of_tiles([self._tile(values) for values in slices], tuple(self._layout(grid)))

    def _tile(self, values: Values) -> Tile:
        cut = patches(values, self._config.patch_size)
        rows, columns = cut.shape[:2]
        if rows * columns > self.shape.max_patches:
            raise ImageError(
                f"the image would become {rows} x {columns} patches for this model; use an image that is "
                "less long and narrow"
            )
        row, column = np.indices((rows, columns), np.int32).reshape(2, -1)
        sides = self._positions
        arrays = {
            "pixels": cut.reshape(rows * columns, -1),
            "places": row * sides // rows * sides + column * sides // columns,
            "row": row,
            "column": column,
            "row_waves": _waves(rows, self._row_size // 4),
            "column_waves": _waves(columns, self._row_size // 4),
            "query": np.arange(self._num_rows, dtype=np.int32),
        }
        return Tile(arrays, self._num_rows)

    def _layout(self, grid: tuple[int, int]) -> Iterator[str | int]:
        """Yield the whole image, then the slices line by line."""
        yield from (f"<image_id>{IMAGE_NUMBER}</image_id><image>", self._num_rows, "</image>")
        for line in range(grid[0]):
            yield "\n" if line else ""
            yield from ("<slice>", self._num_rows, "</slice>") * grid[1]

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        return self.resampler(graph, self.v(graph, patches, history), rows, history)


def _rows_of(file: GGUFFile, name: str) -> int:
    if name not in file.tensors:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return file.tensors[name].shape[0]


def _waves(count: int, num_frequencies: int) -> npt.NDArray[np.float32]:
    """Return the sines, and next to them the cosines, of numbers below `count` times falling frequencies."""
    frequencies = 1 / _ROPE_BASE ** (
        np.arange(num_frequencies, dtype=np.float32) / np.float32(num_frequencies)
    )
    angles = np.arange(count, dtype=np.float32)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
