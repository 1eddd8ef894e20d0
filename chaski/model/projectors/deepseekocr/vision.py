"""The encoder of a view: SAM's map, CLIP on the map, and a matrix for both side by side.

Large images are cut into tiles, whose rows stand line by line across all tiles of a line. A learned row ends
each line. The whole image follows, and another learned row ends it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, Normal, Values, normalize, on_square, open_image, patches, stretched_tiles
from chaski.kvcache import KVShape
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import Embedding, Joined, LayerNorm, Linear, Module
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, FurtherAttention, Image, PatchHistory, Tile
from chaski.model.projectors import vit
from chaski.model.projectors.deepseekocr import sam
from chaski.model.projectors.deepseekocr.sam import SamConfig, halved, shape_of
from chaski.model.projectors.deepseekocr.tables import SquareTable, bicubic_taps

_EPS = 1e-5
_TILE = 5, 8  # a tile has 5/8 of the largest view's patches each way, as 640 of 1,024 pixels
_LEAST_TILES, _MOST_TILES, _TOO_MANY = 2, 9, 256
_CLIP = "clip"


class VisionConfig(Struct, frozen=True, kw_only=True):
    """The sizes of CLIP and of views.

    rows: the rows of the largest view, each way. tile: the patches of a tile, each way.
    """

    sam: SamConfig
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    normal: Normal
    counts: range

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the keys and, since files have other sizes in some keys, the shapes of tensors."""
        prefix = f"{file.architecture}.vision"
        found = cls(
            sam=SamConfig.read(file),
            hidden_size=file.get(f"{prefix}.embedding_length", int),
            ffn_size=shape_of(file, "v.blk.0.ffn_up.weight", 2)[0],
            num_layers=file.get(f"{prefix}.block_count", int),
            num_heads=file.get(f"{prefix}.attention.head_count", int),
            normal=read_normal(file, HALF),
            counts=tile_counts(file, _MOST_TILES),
        )
        places = shape_of(file, "v.position_embd.weight", 2)[0]
        if found.hidden_size != found.sam.channels[2] or places != 1 + found.rows**2 or found.tile < 1:
            raise ModelError(
                f"{file.path}: CLIP has rows of {found.hidden_size} elements and {places} places; SAM makes "
                f"{found.rows**2} rows of {found.sam.channels[2]} from {found.sam.side**2} patches"
            )
        return found

    @property
    def rows(self) -> int:
        return quarter(self.sam.side)

    @property
    def tile(self) -> int:
        return self.sam.side * _TILE[0] // _TILE[1]

    @property
    def in_clip(self) -> FurtherAttention:
        """CLIP's attention, to a class row and all rows of a view."""
        size = self.hidden_size // self.num_heads
        return FurtherAttention(_CLIP, 1 + self.rows**2, KVShape(self.num_heads, size, size))


def tile_counts(file: GGUFFile, usual_most: int) -> range:
    """Return how many tiles an image may have. Raises ModelError for invalid numbers."""
    prefix = f"{file.architecture}.vision.preproc"
    least = file.get(f"{prefix}_min_tiles", int, _LEAST_TILES)
    most = file.get(f"{prefix}_max_tiles", int, usual_most)
    if not 1 <= least <= most <= _TOO_MANY:
        raise ModelError(
            f"{file.path}: an image is cut into {least} to {most} tiles; both must be from 1 to {_TOO_MANY}"
        )
    return range(least, most + 1)


def quarter(side: int) -> int:
    """Return the rows that a view of `side` patches has each way."""
    return halved(halved(side))


class ClipBlock(vit.Block):
    joined = Joined("attn_qkv", ("attn_q", "attn_k", "attn_v"))


class Tower(Module):
    """Both encoders, and the learned rows. CLIP has a class row, which comes first and is dropped."""

    unused = ("patch_embd",)

    def __init__(self, config: VisionConfig, row_size: int) -> None:
        c = config
        taps = bicubic_taps(c.sam.side, c.tile)
        self._places = SquareTable("clip place", c.rows, bicubic_taps(c.rows, quarter(c.tile)), first=1)
        self.sam = sam.Tower(c.sam, taps)
        self.class_embd = Weight((1, c.hidden_size), plain=True, stored=(c.hidden_size,))
        self.position_embd = Embedding(1 + c.rows**2, c.hidden_size)
        self.pre_ln = LayerNorm(c.hidden_size, _EPS)
        self.blk = [
            ClipBlock(c.hidden_size, c.ffn_size, c.num_heads, _EPS, ops.quick_gelu)
            for _ in range(c.num_layers)
        ]
        self.image_newline = Weight((1, row_size), plain=True, stored=(row_size,))
        self.view_seperator = Weight((1, row_size), plain=True)

    def arrays(self, patches: int) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs for a view of `patches`², without the pixels."""
        rows = quarter(patches)
        number = np.arange(1 + rows**2, dtype=np.int32)
        return {
            **self.sam.arrays(patches),
            **self._places.arrays(rows),
            "clip row": np.maximum(number - 1, 0),
            "is class": column(number == 0),
            "is row": column(number > 0),
            f"{_CLIP} spans": np.stack([np.zeros_like(number), np.full_like(number, len(number))], axis=1),
        }

    def clip(self, graph: Graph, seen: Tensor, dim: Dim, history: PatchHistory) -> Tensor:
        """Return CLIP's states for the rows of SAM's map, after that of the class."""
        is_class, is_row = (graph.input(f"is {kind}", (dim, 1), DType.F32) for kind in ("class", "row"))
        x = ops.scale_rows(seen.rows(graph.input("clip row", (dim,), DType.I32)), is_row)
        x = x + ops.product(is_class, self.class_embd)
        x = self.pre_ln(x + self._places(graph, self.position_embd, dim))
        for block in self.blk:
            x = block(x, history.further(_CLIP))
        return x


class FullyConnected(Module):
    def __init__(self, size: int, row_size: int) -> None:
        self.fc = Linear(size, row_size)


class Projector(Module):
    def __init__(self, size: int, row_size: int) -> None:
        self.model = FullyConnected(size, row_size)


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = VisionConfig.read(file)
        self.v = Tower(c, row_size)
        self.mm = Projector(2 * c.hidden_size, row_size)
        self.shape = EncoderShape(
            max_patches=c.sam.side**2,
            max_rows=c.rows**2 + 2,
            row_size=row_size,
            heads=c.sam.heads(c.sam.side),
            further=(c.sam.in_windows, c.in_clip),
            max_tiles=c.counts.stop,
        )

    def read_image(self, data: bytes) -> Image:
        c, pixels = self._config, open_image(data)
        edge, tile = (side * c.sam.patch_size for side in (c.sam.side, c.tile))
        cut, grid = stretched_tiles(pixels, tile, c.counts, c.normal)
        whole = normalize(on_square(pixels, edge, c.normal.color), c.normal.mean, c.normal.std)
        return self.image(whole, cut, grid)

    def image(self, whole: Values, cut: Values, grid: tuple[int, int]) -> Image:
        """Return the whole image and its tiles in a grid, both normalized, as the encoder's inputs."""
        c = self._config
        tiles = [self._tile(whole, num_ends=2), *(self._tile(part) for part in cut)]
        whole_rows, rows = c.rows**2, quarter(c.tile)
        line_end, end = whole_rows, whole_rows + 1
        numbers = end + 1 + np.arange(prod(grid) * rows**2).reshape(*grid, rows, rows)
        lines = numbers.swapaxes(1, 2).reshape(grid[0] * rows, grid[1] * rows)
        parts = [_ended(lines, line_end), _ended(np.arange(whole_rows).reshape(c.rows, c.rows), line_end)]
        order = np.concatenate([*parts, [end]]).astype(np.int32)
        return Image.of_tiles(tiles, (len(order), "\n"), order)

    def _tile(self, pixels: Values, num_ends: int = 0) -> Tile:
        """Return the inputs for a view. Its last rows are the learned ones."""
        cut = patches(pixels, self._config.sam.patch_size)
        side = len(cut)
        num_rows = quarter(side) ** 2
        number = np.arange(num_rows + num_ends, dtype=np.int32)
        seen = np.minimum(number, num_rows - 1)
        arrays: dict[str, npt.NDArray[Any]] = {
            "pixels": cut.reshape(side**2, -1),
            **self.v.arrays(side),
            "seen": seen,
            "seen by clip": seen + 1,
            "is seen": column(number < num_rows),
            "is line end": column(number == num_rows),
            "is end": column(number == num_rows + 1),
        }
        return Tile(arrays, len(number))

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        c = self._config
        seen = self.v.sam(graph, patches, history, history.further(c.sam.in_windows.name))
        clip = self.v.clip(graph, seen, Dim(_CLIP, c.in_clip.max_cells), history)
        x = ops.concat(
            [
                (clip.rows(graph.input("seen by clip", (rows,), DType.I32)), 0, 1),
                (seen.rows(graph.input("seen", (rows,), DType.I32)), c.hidden_size, 1),
            ]
        )
        is_seen, is_line_end, is_end = (
            graph.input(f"is {kind}", (rows, 1), DType.F32) for kind in ("seen", "line end", "end")
        )
        x = ops.scale_rows(self.mm.model.fc(x), is_seen)
        x = x + ops.product(is_line_end, self.v.image_newline)
        return x + ops.product(is_end, self.v.view_seperator)


def column(values: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    return values.astype(np.float32)[:, None]


def _ended(lines: npt.NDArray[Any], end: int) -> npt.NDArray[Any]:
    """Return the numbers in lines (lines, rows) one after the other, each line followed by `end`."""
    return np.concatenate([lines, np.full((len(lines), 1), end)], axis=1).reshape(-1)
