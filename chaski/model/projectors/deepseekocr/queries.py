"""The encoder of DeepSeek-OCR 2 (Wei et al. 2026): SAM's map, and layers of Qwen 2 that read it by queries.

The rows of the map see each other, whatever their order. Learned queries follow, as many as rows. Each sees
all rows and the queries before it, and its state becomes a row of the model. Tiles have queries of their own.
The rows of tiles precede those of the whole image, and a learned row ends them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, Normal, Values, normalize, on_square, open_image, patches, stretched_tiles
from chaski.kvcache import KVShape, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Rope, Tensor, Weight
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, SwiGLU, attention
from chaski.ml.nn.rope import rope_frequencies
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, FurtherAttention, Image, PatchHistory, Tile
from chaski.model.projectors.deepseekocr import sam
from chaski.model.projectors.deepseekocr.sam import SamConfig, shape_of
from chaski.model.projectors.deepseekocr.tables import bicubic_taps
from chaski.model.projectors.deepseekocr.vision import Projector, column, quarter, tile_counts

_BASE = 1e6
_MOST_TILES = 6
_NAME = "queries"
_LARGE, _SMALL = "resample_query_1024", "resample_query_768"  # of the whole image and of tiles


class VisionConfig(Struct, frozen=True, kw_only=True):
    """The sizes of the layers of Qwen 2 and of views. rows, tile_rows: those of a view, each way."""

    sam: SamConfig
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    eps: float
    rows: int
    tile_rows: int
    normal: Normal
    counts: range

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the keys and the shapes of tensors. Raises ModelError if they do not fit each other."""
        prefix, of_sam = f"{file.architecture}.vision", SamConfig.read(file)
        numbers = [shape_of(file, f"v.{name}.weight", 2)[0] for name in (_LARGE, _SMALL)]
        rows, tile_rows = (int(number**0.5) for number in numbers)
        size, heads = (
            file.get(f"{prefix}.{key}", int) for key in ("embedding_length", "attention.head_count")
        )
        kv_heads = file.get(f"{prefix}.attention.head_count_kv", int)
        if size != of_sam.channels[2] or rows != quarter(of_sam.side) or numbers != [rows**2, tile_rows**2]:
            raise ModelError(
                f"{file.path}: there are {numbers[0]} and {numbers[1]} queries of {size} elements; SAM makes "
                f"{quarter(of_sam.side) ** 2} rows of {of_sam.channels[2]}"
            )
        if min(heads, kv_heads, tile_rows) < 1 or size % (2 * heads) or heads % kv_heads or tile_rows > rows:
            raise ModelError(
                f"{file.path}: {heads} heads of {size} elements cannot share {kv_heads} keys and values, or "
                f"tiles with {tile_rows**2} queries are larger than images with {rows**2}"
            )
        return cls(
            sam=of_sam,
            hidden_size=size,
            ffn_size=shape_of(file, "v.blk.0.ffn_up.weight", 2)[0],
            num_layers=file.get(f"{prefix}.block_count", int),
            num_heads=heads,
            num_kv_heads=kv_heads,
            eps=file.get(f"{prefix}.attention.layer_norm_epsilon", float),
            rows=rows,
            tile_rows=tile_rows,
            normal=read_normal(file, HALF),
            counts=tile_counts(file, _MOST_TILES),
        )

    @property
    def tile(self) -> int:
        """Return the patches of a tile, each way."""
        return self.sam.side * self.tile_rows // self.rows

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    def rope(self) -> Rope:
        return Rope(rope_frequencies(self.head_size, _BASE), neox=True)

    @property
    def in_queries(self) -> FurtherAttention:
        """The attention of rows of SAM's map and of queries."""
        shape = KVShape(self.num_kv_heads, self.head_size, self.head_size)
        return FurtherAttention(_NAME, 2 * self.rows**2, shape)


class Block(Module):
    """A layer of Qwen 2."""

    def __init__(self, config: VisionConfig) -> None:
        c = self._config = config
        self.ln1 = RMSNorm(c.hidden_size, c.eps)
        self.attn_q = Linear(c.hidden_size, c.hidden_size)
        self.attn_k, self.attn_v = (Linear(c.hidden_size, c.num_kv_heads * c.head_size) for _ in range(2))
        self.attn_out = Linear(c.hidden_size, c.hidden_size)
        self.ln2 = RMSNorm(c.hidden_size, c.eps)
        self.ffn = SwiGLU(c.hidden_size, c.ffn_size)

    def __call__(self, x: Tensor, rope: Tensor, history: LayerCache) -> Tensor:
        c, h = self._config, self.ln1(x)
        q = ops.rope(self.attn_q(h).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(h).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(h).reshape(c.num_kv_heads, c.head_size)
        x = x + self.attn_out(attention(q, k, v, history, scale=c.head_size**-0.5))
        return x + self.ffn(self.ln2(x))


class Tower(Module):
    """Both encoders, and the learned rows."""

    def __init__(self, config: VisionConfig, row_size: int) -> None:
        c = self._config = config
        self.sam = sam.Tower(c.sam, bicubic_taps(c.sam.side, c.tile))
        self.resample_query_1024 = Embedding(c.rows**2, c.hidden_size)
        self.resample_query_768 = Embedding(c.tile_rows**2, c.hidden_size)
        self.blk = [Block(c) for _ in range(c.num_layers)]
        self.post_ln = RMSNorm(c.hidden_size, c.eps)
        self.view_seperator = Weight((1, row_size), plain=True)

    def arrays(self, patches: int) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs for a view of `patches`², without the pixels."""
        c, count = self._config, quarter(patches) ** 2
        number = np.arange(2 * count, dtype=np.int32)
        is_query, is_whole = number >= count, patches == c.sam.side
        query = np.maximum(number - count, 0)
        ends = np.where(is_query, number + 1, count)
        return {
            **self.sam.arrays(patches),
            "map row": np.minimum(number, count - 1),
            "is map row": column(~is_query),
            "place": number,
            f"{_NAME} spans": np.stack([np.zeros_like(number), ends], axis=1).astype(np.int32),
            f"number {_LARGE}": query if is_whole else np.zeros_like(query),
            f"number {_SMALL}": query if not is_whole else np.zeros_like(query),
            f"is {_LARGE}": column(is_query & is_whole),
            f"is {_SMALL}": column(is_query & (not is_whole)),
        }

    def read(self, graph: Graph, seen: Tensor, history: PatchHistory) -> Tensor:
        """Return the states of the rows of SAM's map, and those of queries after them."""
        c = self._config
        dim = Dim(_NAME, c.in_queries.max_cells)
        x = seen.rows(graph.input("map row", (dim,), DType.I32))
        x = ops.scale_rows(x, graph.input("is map row", (dim, 1), DType.F32))
        for name in (_LARGE, _SMALL):
            table: Embedding = getattr(self, name)
            query = table(graph.input(f"number {name}", (dim,), DType.I32))
            x = x + ops.scale_rows(query, graph.input(f"is {name}", (dim, 1), DType.F32))
        rope = ops.rope_table(graph.input("place", (dim,), DType.I32), c.rope())
        for block in self.blk:
            x = block(x, rope, history.further(_NAME))
        return self.post_ln(x)


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = VisionConfig.read(file)
        self.v = Tower(c, row_size)
        self.mm = Projector(c.hidden_size, row_size)
        self.shape = EncoderShape(
            max_patches=c.sam.side**2,
            max_rows=c.rows**2 + 1,
            row_size=row_size,
            heads=c.sam.heads(c.sam.side),
            further=(c.sam.in_windows, c.in_queries),
            max_tiles=c.counts.stop,
        )

    def read_image(self, data: bytes) -> Image:
        c, pixels = self._config, open_image(data)
        edge, tile = (side * c.sam.patch_size for side in (c.sam.side, c.tile))
        cut, _ = stretched_tiles(pixels, tile, c.counts, c.normal)
        whole = normalize(on_square(pixels, edge, c.normal.color), c.normal.mean, c.normal.std)
        tiles = [self._tile(whole, num_ends=1), *(self._tile(part) for part in cut)]
        first = c.rows**2 + 1
        numbers = np.arange(first + len(cut) * c.tile_rows**2)
        order = np.concatenate([numbers[first:], numbers[:first]]).astype(np.int32)
        return Image.of_tiles(tiles, (len(order), "\n"), order)

    def _tile(self, pixels: Values, num_ends: int = 0) -> Tile:
        """Return the inputs for a view. A row after the others is the learned one."""
        cut = patches(pixels, self._config.sam.patch_size)
        side = len(cut)
        count = quarter(side) ** 2
        number = np.arange(count + num_ends, dtype=np.int32)
        arrays: dict[str, npt.NDArray[Any]] = {
            "pixels": cut.reshape(side**2, -1),
            **self.v.arrays(side),
            "seen": count + np.minimum(number, count - 1),
            "is seen": column(number < count),
            "is end": column(number == count),
        }
        return Tile(arrays, len(number))

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        seen = self.v.sam(graph, patches, history, history.further(self._config.sam.in_windows.name))
        states = self.v.read(graph, seen, history)
        x = self.mm.model.fc(states.rows(graph.input("seen", (rows,), DType.I32)))
        x = ops.scale_rows(x, graph.input("is seen", (rows, 1), DType.F32))
        return x + ops.product(graph.input("is end", (rows, 1), DType.F32), self.v.view_seperator)
