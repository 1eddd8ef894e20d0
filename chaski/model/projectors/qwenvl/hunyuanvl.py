"""HunyuanOCR's image encoder (Tencent 2025, arXiv 2511.19575).

Patches mix four entries of a position table. Two convolutions make a row of each square of patches, a row
follows each line of squares, and a row each stands before and after the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.image import open_image
from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.nn import Embedding, Linear, Module, PatchEmbedding, RMSNorm
from chaski.model.multimodal import EncoderShape, Image, PatchHistory
from chaski.model.projectors import vit
from chaski.model.projectors.qwenvl import encoder, one_frame
from chaski.model.projectors.qwenvl.encoder import VisionConfig, at_places
from chaski.model.projectors.qwenvl.glm4v import shares
from chaski.model.projectors.qwenvl.image import Patches, cut_frames

_FEWEST_ROWS, _MOST_ROWS = 256, 4096
_MOST_UNEQUAL = 200
_COLORS, _TAPS = 3, 2

Arrays = dict[str, npt.NDArray[Any]]


class Tower(Module):
    def __init__(self, config: VisionConfig, side: int) -> None:
        c = config
        self.patch_embd = PatchEmbedding(c.patch_size, c.hidden_size)
        self.position_embd = Embedding(side**2, c.hidden_size)
        self.blk = [
            vit.Block(c.hidden_size, c.ffn_size, c.num_heads, c.eps, ops.gelu) for _ in range(c.num_layers)
        ]
        self.image_newline = _row(4 * c.hidden_size)


class Projection(Module):
    """The part `mm.model`."""

    def __init__(self, size: int, row_size: int) -> None:
        self.fc = Linear(size, row_size)


class Merger(Module):
    def __init__(self, config: VisionConfig, row_size: int) -> None:
        size, square = config.hidden_size, config.square
        self.pre_norm = RMSNorm(size, config.eps)
        first, second = Linear(size * square**2, 2 * size), Linear(2 * size, 4 * size)
        first.weight.stored = 2 * size, size, square, square
        second.weight.stored = 4 * size, 2 * size, 1, 1
        setattr(self, "0", first)
        setattr(self, "2", second)
        self.model = Projection(4 * size, row_size)
        self.image_begin, self.image_end = _row(row_size), _row(row_size)
        self.post_norm = RMSNorm(row_size, config.eps)

    def squares(self, x: Tensor, squares: Sequence[Tensor]) -> Tensor:
        """Return a row for each square of patches."""
        first, second = getattr(self, "0"), getattr(self, "2")
        parts = [self.pre_norm(x).rows(patches) for patches in squares]
        merged = ops.concat([(part, index, len(parts)) for index, part in enumerate(parts)])
        found: Tensor = second(ops.gelu(first(merged)))
        return found


class Vision(encoder.Vision):
    v: Tower  # type: ignore[assignment]
    mm: Merger  # type: ignore[assignment]
    marks = ("<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>")
    unused = ("v.view_seperator",)

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        config = VisionConfig.read(file, _FEWEST_ROWS, most_rows=_MOST_ROWS)
        self._side = one_frame.flat_side(file)
        super().__init__(config, row_size, Tower(config, self._side))  # type: ignore[arg-type]
        self.mm = Merger(config, row_size)

    @property
    def shape(self) -> EncoderShape:
        shape = super().shape
        lines = min(shape.max_rows, isqrt(shape.max_rows * _MOST_UNEQUAL) + 1)
        return replace(shape, max_rows=shape.max_rows + lines + 2, num_coordinates=4)

    def limit_to(self, context: int) -> None:
        """Leave room for the ends of the lines of a square image."""
        most = context // 2
        super().limit_to(2 * max(most - isqrt(most) - 2, 1))

    def read_image(self, data: bytes) -> Image:
        c = self._config
        found = cut_frames(self.resized(open_image(data)), None, c.patch_size, c.square)
        rows, columns = found.grid
        grid, count = (rows, columns + 1), rows * (columns + 1)
        before, after = self.marks
        return Image(self.arrays(found), count + 2, (before, count + 2, after), grid=grid, is_numbered=True)

    def arrays(self, found: Patches) -> Arrays:
        square, (rows, columns) = self._config.square, found.grid
        corners, parts = shares(self._side, found.places, (rows * square, columns * square), _TAPS)
        arrays: Arrays = {"pixels": found.pixels}
        arrays |= {f"corner {index}": corner for index, corner in enumerate(corners)}
        arrays |= {f"share {index}": part[:, None] for index, part in enumerate(parts)}
        # All rows of the image have a square, so that they are computed alike; some do not use theirs.
        number = np.arange(rows * (columns + 1) + 2)
        is_inner = (number > 0) & (number < len(number) - 1)
        is_end = is_inner & (number % (columns + 1) == 0)
        is_square = is_inner & ~is_end
        for index, patches in enumerate(found.squares):
            arrays[f"square {index}"] = np.zeros(len(number), np.int32)
            arrays[f"square {index}"][is_square] = patches
        kinds = {"square": is_square, "end": is_end, "inner": is_inner}
        kinds |= {"first": number == 0, "last": number == len(number) - 1}
        return arrays | {f"is {name}": kind[:, None].astype(np.float32) for name, kind in kinds.items()}

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: PatchHistory) -> Tensor:
        c = self._config
        x = self.v.patch_embd(graph.input("pixels", (patches, _COLORS * c.patch_size**2), DType.F32))
        x = x + at_places(self.v.position_embd, graph, patches, _TAPS**2)
        for block in self.v.blk:
            x = block(x, history)

        def kind(name: str) -> Tensor:
            return graph.input(f"is {name}", (rows, 1), DType.F32)

        numbers = [graph.input(f"square {index}", (rows,), DType.I32) for index in range(c.patches_a_row)]
        lines = ops.scale_rows(self.mm.squares(x, numbers), kind("square"))
        lines = lines + ops.product(kind("end"), self.v.image_newline)
        found = ops.scale_rows(self.mm.model.fc(lines), kind("inner"))
        found = found + ops.product(kind("first"), self.mm.image_begin)
        return self.mm.post_norm(found + ops.product(kind("last"), self.mm.image_end))


def _row(size: int) -> Weight:
    return Weight((1, size), plain=True, stored=(size,))
