"""Llama 4's image encoder (Meta 2025): axial rope, a class row, and an adapter over patch squares.

An image is cut into tiles, and the whole image follows them. GELU is exact, as in transformers; llama.cpp
approximates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import HALF, Normal, Values, in_rounded_tiles, open_image, patches
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Rope, Tensor, Weight
from chaski.ml.nn import Embedding, LayerNorm, Linear, Module, attention
from chaski.ml.nn.rope import rope_frequencies
from chaski.model.config import patches_a_side, read_normal
from chaski.model.multimodal import EncoderShape, Image, Tile
from chaski.model.projectors import vit
from chaski.model.projectors.vit import square_inputs, squares_as_rows
from chaski.model.rope import read_base
from chaski.model.vision_sizes import VisionSizes, read_sizes

_COLORS = 3
_MAX_TILES = 16  # if a file does not define it, as those of llama.cpp and Ollama do not


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    """`square` patches become one row each way.

    second_norm: the file's name for the second norm of a layer. Some releases of llama.cpp's converter gave
    it the name of another norm, one of Gemma 4's.
    """

    edge: int
    patch_size: int
    side: int
    square: int
    rope_base: float
    max_tiles: int
    normal: Normal
    second_norm: str

    @classmethod
    def read(cls, file: GGUFFile) -> VisionConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`)."""
        prefix = f"{file.architecture}.vision"
        edge, patch_size = (file.get(f"{prefix}.{key}_size", int) for key in ("image", "patch"))
        side, square = patches_a_side(file, edge, patch_size), _square(file, prefix)
        if square < 1 or side % square:
            raise ModelError(
                f"{file.path}: {side} x {side} patches cannot be split into {square} x {square} squares"
            )
        max_tiles = file.get(f"{prefix}.preproc_max_tiles", int, _MAX_TILES)
        if max_tiles < 1:
            raise ModelError(f"{file.path}: an image cannot have {max_tiles} tiles at most")
        sizes = read_sizes(file)
        hidden_size, num_heads = sizes["hidden_size"], sizes["num_heads"]
        if num_heads < 1 or hidden_size % (4 * num_heads):
            raise ModelError(
                f"{file.path}: {hidden_size} elements in {num_heads} heads cannot be split into pairs for "
                "rows and columns"
            )
        return cls(
            **sizes,
            edge=edge,
            patch_size=patch_size,
            side=side,
            square=square,
            rope_base=read_base(file, f"{prefix}.rope.freq_base"),
            max_tiles=max_tiles,
            normal=read_normal(file, HALF),
            second_norm="attn_post_norm" if "v.blk.0.attn_post_norm.weight" in file.tensors else "ln2",
        )

    @property
    def num_patches(self) -> int:
        """Return the number of patches of a tile."""
        return self.side**2

    @property
    def num_rows(self) -> int:
        """Return the number of rows of a tile that the text model sees."""
        return (self.side // self.square) ** 2


def _square(file: GGUFFile, prefix: str) -> int:
    """Return the side of a square of patches, which Ollama's files store as a ratio."""
    ratio = file.get(f"{prefix}.pixel_shuffle_ratio", float, 0.5)
    if not 0 < ratio <= 1:
        raise ModelError(
            f"{file.path}: {prefix}.pixel_shuffle_ratio is {ratio}; it must be above 0 and at most 1"
        )
    return file.get(f"{prefix}.projector.scale_factor", int, round(1 / ratio))


class Block(vit.Block):
    """A layer. A patch's column rotates the first half of each query and key, its row the second half."""

    def __init__(self, config: VisionConfig) -> None:
        c = config
        super().__init__(c.hidden_size, c.ffn_size, c.num_heads, c.eps, ops.gelu)
        self._second_norm = c.second_norm
        norm = self.ln2
        del self.ln2
        setattr(self, c.second_norm, norm)

    def __call__(self, x: Tensor, history: LayerCache, tables: Sequence[Tensor] = ()) -> Tensor:
        h = self.ln1(x)
        q, k, v = (part(h).reshape(*self._heads) for part in (self.attn_q, self.attn_k, self.attn_v))
        for table in tables:
            q, k = ops.rope(q, table), ops.rope(k, table)
        x = x + self.attn_out(attention(q, k, v, history, scale=self._heads[1] ** -0.5))
        h = getattr(self, self._second_norm)(x)
        return x + self.ffn(h)


class Tower(Module):
    """The encoder. The last row is a class row; it takes part, is not rotated, and is dropped at the end."""

    def __init__(self, config: VisionConfig) -> None:
        c = config
        self._config = c
        self.class_embd = Weight((1, c.hidden_size), plain=True, stored=(c.hidden_size,))
        self.patch_embd = Linear(_COLORS * c.patch_size**2, c.hidden_size)
        self.position_embd = Embedding(c.num_patches + 1, c.hidden_size)
        self.pre_ln = LayerNorm(c.hidden_size, c.eps)
        self.blk = [Block(c) for _ in range(c.num_layers)]
        self.post_ln = LayerNorm(c.hidden_size, c.eps)

    def __call__(self, graph: Graph, patches: Dim, history: LayerCache) -> Tensor:
        pixels = graph.input("pixels", (patches, self.patch_embd.weight.shape[1]), DType.F32)
        x = self.patch_embd(pixels)
        x = x + ops.product(graph.input("is_class", (patches, 1), DType.F32), self.class_embd)
        x = x + self.position_embd(graph.input("places", (patches,), DType.I32))
        x = self.pre_ln(x)
        by_column, by_row = self._ropes()
        tables = (
            ops.rope_table(graph.input("column", (patches,), DType.I32), by_column),
            ops.rope_table(graph.input("row", (patches,), DType.I32), by_row),
        )
        for block in self.blk:
            x = block(x, history, tables)
        return self.post_ln(x)

    def _ropes(self) -> tuple[Rope, Rope]:
        """Return both ropes, each for its half, with equal frequencies. Frequency 0 does not rotate."""
        c = self._config
        each = rope_frequencies(c.head_size // 2, c.rope_base)
        rest = np.zeros_like(each)
        return Rope(np.concatenate([each, rest])), Rope(np.concatenate([rest, each]))


class Projector(Module):
    """The projector. GGUF names the adapter's matrices `model.mlp.1` and `2`, and the last one `model.fc`."""

    def __init__(self, config: VisionConfig, sizes: tuple[int, int], row_size: int) -> None:
        self.model = _Model(config.hidden_size * config.square**2, sizes, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        first, second = vars(self.model.mlp).values()
        return self.model.fc(ops.gelu(second(ops.gelu(first(x)))))


class _Model(Module):
    def __init__(self, size: int, sizes: tuple[int, int], row_size: int) -> None:
        self.mlp = _Adapter(size, *sizes)
        self.fc = Linear(sizes[1], row_size)


class _Adapter(Module):
    def __init__(self, size: int, inner_size: int, last_size: int) -> None:
        setattr(self, "1", Linear(size, inner_size))
        setattr(self, "2", Linear(inner_size, last_size))


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`."""

    inline = True
    is_bidirectional = False

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = c = VisionConfig.read(file)
        self.shape = EncoderShape(
            max_patches=c.num_patches + 1,
            max_rows=c.num_rows,
            row_size=row_size,
            heads=c.heads,
            max_tiles=c.max_tiles + 1,
        )
        self.v = Tower(c)
        self.mm = Projector(c, (_rows(file, "mm.model.mlp.1"), _rows(file, "mm.model.mlp.2")), row_size)

    def read_image(self, data: bytes) -> Image:
        c = self._config
        tiles, grid = in_rounded_tiles(open_image(data), c.edge, c.max_tiles, c.normal)
        return Image.of_tiles([self._tile(tile) for tile in tiles], tuple(_layout(grid, c.num_rows)))

    def _tile(self, values: Values) -> Tile:
        c = self._config
        cut = patches(values, c.patch_size)
        pixels = np.zeros((c.num_patches + 1, cut.shape[-1]), np.float32)
        pixels[:-1] = cut.reshape(c.num_patches, -1)
        places = np.arange(c.num_patches + 1, dtype=np.int32)
        is_class = places == c.num_patches
        arrays = {
            "pixels": pixels,
            "is_class": is_class[:, None].astype(np.float32),
            "places": places,
            # Rows and columns count from 1; the class row is at 0, where nothing rotates.
            "row": np.where(is_class, 0, places // c.side + 1).astype(np.int32),
            "column": np.where(is_class, 0, places % c.side + 1).astype(np.int32),
            **square_inputs((c.side, c.side), c.square),
        }
        return Tile(arrays, c.num_rows)

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        x = self.v(graph, patches, history)
        return self.mm(squares_as_rows(graph, x, rows, self._config.square))


def _rows(file: GGUFFile, name: str) -> int:
    name = f"{name}.weight"
    if name not in file.tensors:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return file.tensors[name].shape[0]


def _layout(grid: tuple[int, int], num_rows: int) -> Iterator[str | int]:
    """Yield the tiles line by line if there are several, then the whole image."""
    yield "<|image_start|>"
    if grid != (1, 1):
        for _ in range(grid[0]):
            for column in range(grid[1]):
                yield from ("<|tile_x_separator|>", num_rows) if column else (num_rows,)
            yield "<|tile_y_separator|>"
    yield from ("<|image|>", num_rows, "<|image_end|>")
