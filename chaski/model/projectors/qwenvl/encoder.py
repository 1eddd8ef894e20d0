"""The common parts of Qwen's image encoders (Wang et al. 2024, arXiv 2409.12191).

Patches are rotated by their row and column. Squares of patches are merged into rows of the text model. These
rows form a grid, and the text model rotates them by coordinates; see `chaski.chat.image_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.image import CLIP, Normal, Pixels, Values, in_bounds, open_image
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Rope, Tensor, Weight
from chaski.ml.nn import Embedding, LayerNorm, Linear, Module, PatchEmbedding, RMSNorm, attention
from chaski.ml.nn.module import Joined
from chaski.ml.nn.rope import rope_frequencies
from chaski.model.config import read_normal
from chaski.model.multimodal import EncoderShape, Image, PatchHistory
from chaski.model.projectors.qwenvl.image import Limits, Patches, cut_frames
from chaski.model.rope import read_base
from chaski.model.vision_sizes import VisionSizes, read_sizes

__all__ = [
    "FeedForward",
    "JoinedFrames",
    "Merger",
    "Tower",
    "TwoFrames",
    "Vision",
    "VisionConfig",
    "at_places",
    "merged",
]

# Where the file states no limit, that of the published processors.
_MOST_ROWS = 16384
_MIN_VIDEO_ROWS, _MOST_VIDEO_ROWS = 4, 12288
# Loading a model reserves memory for this number of rows at once; larger images are computed in pieces.
_AT_ONCE = 2048
_COLORS, _FRAMES = 3, 2

Norm = Callable[[int], LayerNorm | RMSNorm]


class VisionConfig(VisionSizes, frozen=True, kw_only=True):
    """`square` patches are merged each way. Layers not in `full` see windows of `window` squares a side."""

    patch_size: int
    square: int
    rope_base: float
    limits: Limits
    video_limits: Limits
    normal: Normal
    window: int | None = None
    full: frozenset[int] = frozenset()

    @classmethod
    def read(
        cls, file: GGUFFile, min_rows: int = 1, normal: Normal = CLIP, most_rows: int = _MOST_ROWS
    ) -> VisionConfig:
        """Read the configuration from the metadata of a model or of a projector (architecture `clip`).

        `min_rows`, `most_rows` and `normal` are the defaults if the file does not define them.
        """
        prefix = f"{file.architecture}.vision"
        sizes = read_sizes(file, eps=1e-6)
        hidden_size, num_heads = sizes["hidden_size"], sizes["num_heads"]
        patch_size = file.get(f"{prefix}.patch_size", int)
        square = file.get(
            f"{prefix}.spatial_merge_size", int, file.get(f"{prefix}.projector.scale_factor", int, 2)
        )
        if num_heads < 1 or hidden_size % (4 * num_heads):
            raise ModelError(
                f"{file.path}: {hidden_size} elements in {num_heads} heads cannot be split into pairs for "
                "rows and columns"
            )
        if patch_size < 1 or square < 1:
            raise ModelError(
                f"{file.path}: patches of {patch_size} pixels cannot be merged in squares of {square}"
            )
        pixels = (patch_size * square) ** 2
        largest = file.get(f"{prefix}.image_max_pixels", int, 0) or most_rows * pixels
        return cls(
            **sizes,
            patch_size=patch_size,
            square=square,
            rope_base=read_base(file, f"{prefix}.rope.freq_base"),
            limits=Limits(
                file.get(f"{prefix}.image_min_pixels", int, 0) or min_rows * pixels,
                max(min(largest, _MOST_ROWS * pixels), pixels),
            ),
            video_limits=Limits(
                file.get(f"{prefix}.video_min_pixels", int, 0) or _MIN_VIDEO_ROWS * pixels,
                file.get(f"{prefix}.video_max_pixels", int, 0) or _MOST_VIDEO_ROWS * _FRAMES * pixels,
            ),
            normal=read_normal(file, normal),
        )

    @property
    def patches_a_row(self) -> int:
        """Return the number of patches that are merged into one row."""
        return self.square**2

    @property
    def pixels_a_row(self) -> int:
        """Return the number of pixels of one row."""
        return (self.patch_size * self.square) ** 2

    def rope(self) -> Rope:
        """Return a rope whose first half of pairs rotates by a patch's row, the other half by its column."""
        frequencies = rope_frequencies(self.head_size // 2, self.rope_base)
        axes = (0,) * len(frequencies) + (1,) * len(frequencies)
        return Rope(np.concatenate([frequencies, frequencies]), neox=True, axes=axes)


class FeedForward(Module):
    """Two layers. `is_swapped`: the file swaps the names `up` and `down`, as old llama.cpp converters do."""

    inline = True

    def __init__(
        self, config: VisionConfig, activation: Callable[[Tensor], Tensor], is_swapped: bool = False
    ) -> None:
        self._activation, self._is_swapped = activation, is_swapped
        first = Linear(config.hidden_size, config.ffn_size)
        second = Linear(config.ffn_size, config.hidden_size)
        self.ffn_up, self.ffn_down = (second, first) if is_swapped else (first, second)

    def __call__(self, x: Tensor) -> Tensor:
        up, down = (self.ffn_down, self.ffn_up) if self._is_swapped else (self.ffn_up, self.ffn_down)
        return down(self._activation(up(x)))


class Block(Module):
    joined = Joined("attn_qkv", ("attn_q", "attn_k", "attn_v"))

    def __init__(self, config: VisionConfig, norm: Norm, ffn: Callable[[Tensor], Tensor]) -> None:
        size = config.hidden_size
        self._heads = config.num_heads, config.head_size
        self.ln1 = norm(size)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (Linear(size, size) for _ in range(4))
        self.ln2 = norm(size)
        self.ffn = ffn

    def __call__(self, x: Tensor, rope: Tensor, history: LayerCache) -> Tensor:
        h = self.ln1(x)
        q, k, v = (part(h).reshape(*self._heads) for part in (self.attn_q, self.attn_k, self.attn_v))
        q, k = ops.rope(q, rope), ops.rope(k, rope)
        x = x + self.attn_out(attention(q, k, v, history, scale=self._heads[1] ** -0.5))
        return x + self.ffn(self.ln2(x))


class TwoFrames(PatchEmbedding):
    """A convolution over two frames, stored as two kernels. Of a picture, both frames are the same."""

    def __init__(self, patch_size: int, size: int) -> None:
        super().__init__(patch_size, size)
        setattr(self, "weight.1", Weight(self.weight.shape, stored=self.weight.stored, split=0))

    def of_frames(self, x: Tensor, later: Tensor) -> Tensor:
        return self(x) + ops.linear(later, getattr(self, "weight.1"))


class JoinedFrames(Linear):
    """The same convolution stored as one kernel: for each color, one frame after the other."""

    def __init__(self, patch_size: int, size: int) -> None:
        self._pixels = patch_size**2
        super().__init__(_COLORS * _FRAMES * self._pixels, size)
        self.weight.stored = _COLORS * size, _FRAMES, patch_size, patch_size

    def of_frames(self, x: Tensor, later: Tensor) -> Tensor:
        count = self._pixels
        parts = [
            (ops.slice(pixels, color * count, count), (color * _FRAMES + frame) * count, 1)
            for color in range(_COLORS)
            for frame, pixels in enumerate((x, later))
        ]
        return self(ops.concat(parts))


class Tower(Module):
    """The layers. `vision.v` may have further parts."""

    def __init__(
        self, config: VisionConfig, norm: Norm, ffn: Callable[[], Callable[[Tensor], Tensor]]
    ) -> None:
        self.patch_embd = TwoFrames(config.patch_size, config.hidden_size)
        self.blk = [Block(config, norm, ffn()) for _ in range(config.num_layers)]
        self.post_ln = norm(config.hidden_size)


class Merger(Module):
    """Two layers that turn the concatenated patches of a square into a row of the text model."""

    def __init__(self, config: VisionConfig, row_size: int, names: Sequence[str] = ("0", "2")) -> None:
        size = config.hidden_size * config.patches_a_row
        self._first, self._second = names
        setattr(self, self._first, Linear(size, size))
        setattr(self, self._second, Linear(size, row_size))

    def __call__(self, x: Tensor) -> Tensor:
        first, second = getattr(self, self._first), getattr(self, self._second)
        merged: Tensor = second(ops.gelu(first(x)))
        return merged


class Vision(Module):
    """The encoder of images; see `MultimodalProcessor`. Subclasses choose norms and feed-forward blocks."""

    inline = True
    is_bidirectional = False
    marks = ("<|vision_start|>", "<|vision_end|>")
    """The tokens before and after a picture."""
    has_grid = True
    """Whether the text model rotates the rows by coordinates."""
    mm: Callable[[Tensor], Tensor]

    def __init__(self, config: VisionConfig, row_size: int, tower: Tower, num_deep: int = 0) -> None:
        """`num_deep`: the number of row parts that are added after layers of the text model."""
        self._config, self._limits = config, config.limits
        self._row_size = row_size * (1 + num_deep)
        self.v = tower
        self.mm = Merger(config, row_size)

    @property
    def shape(self) -> EncoderShape:
        c, rows = self._config, self._limits.largest // self._config.pixels_a_row
        return EncoderShape(
            max_patches=rows * c.patches_a_row,
            max_rows=rows,
            row_size=self._row_size,
            heads=c.heads,
            max_at_once=_AT_ONCE * c.patches_a_row,
            max_tiles=self.max_tiles(rows),
            has_grid=self.has_grid,
        )

    def max_tiles(self, rows: int) -> int:
        """Return how many images of `rows` rows take the place of the largest input."""
        return 1

    def limit_to(self, context: int) -> None:
        """Scale images down to at most half the context."""
        pixels = self._config.pixels_a_row
        most = max(context // 2, 1) * pixels
        self._limits = replace(self._config.limits, largest=min(self._config.limits.largest, most))

    def read_image(self, data: bytes) -> Image:
        c = self._config
        found = cut_frames(self.resized(open_image(data)), None, c.patch_size, c.square, c.window)
        num_rows = found.grid[0] * found.grid[1]
        before, after = self.marks
        grid = found.grid if self.has_grid else None
        return Image(self.arrays(found), num_rows, (before, num_rows, after), grid=grid)

    def resized(self, pixels: Pixels) -> Values:
        """Return a picture in whole squares within the limits, normalized."""
        c = self._config
        return in_bounds(
            pixels, c.patch_size * c.square, self._limits.smallest, self._limits.largest, c.normal
        )

    def arrays(self, found: Patches) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of the encoder."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "pixels": found.pixels,
            "later": found.later,
            "places": found.places,
        }
        arrays |= {f"square {index}": patches for index, patches in enumerate(found.squares)}
        return arrays if self._config.window is None else arrays | {"windows": found.windows}

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        c = self._config
        x = self.embed(graph, patches)
        squares = [graph.input(f"square {index}", (rows,), DType.I32) for index in range(c.patches_a_row)]
        rope = ops.rope_table(graph.input("places", (patches, 2), DType.I32), self.rope())
        windows = history if c.window is None else history.windows()
        deep: list[Tensor] = []
        for index, block in enumerate(self.v.blk):
            x = block(x, rope, windows if index not in c.full else history)
            deep += self.deep_rows(index, x, squares)
        embedded = self.rows_of(self.v.post_ln(x), squares)
        return _side_by_side([embedded, *deep]) if deep else embedded

    def rope(self) -> Rope:
        """Return the rope of the patches, whose axes are row and column."""
        return self._config.rope()

    def embed(self, graph: Graph, patches: Dim) -> Tensor:
        """Return the input of the first layer."""
        size = _COLORS * self._config.patch_size**2
        frames = (graph.input(name, (patches, size), DType.F32) for name in ("pixels", "later"))
        return self.v.patch_embd.of_frames(*frames)

    def rows_of(self, x: Tensor, squares: Sequence[Tensor]) -> Tensor:
        """Return the rows of the text model for the output of the last layer."""
        return self.mm(merged(x, squares))

    def deep_rows(self, layer: int, x: Tensor, squares: Sequence[Tensor]) -> list[Tensor]:
        """Return the parts of rows that come from the output of a layer, if any."""
        return []


def at_places(table: Embedding, graph: Graph, patches: Dim, count: int) -> Tensor:
    """Return each patch's mixture of `count` entries of a position table: inputs `corner i` and `share i`."""
    parts = [
        ops.scale_rows(
            table(graph.input(f"corner {index}", (patches,), DType.I32)),
            graph.input(f"share {index}", (patches, 1), DType.F32),
        )
        for index in range(count)
    ]
    return reduce(Tensor.__add__, parts)


def merged(x: Tensor, squares: Sequence[Tensor]) -> Tensor:
    """Concatenate the patches of each square."""
    return _side_by_side([x.rows(patches) for patches in squares])


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate rows of one size."""
    size = parts[0].shape[1]
    assert isinstance(size, int)
    return ops.concat([(part, index * size, 1) for index, part in enumerate(parts)])
