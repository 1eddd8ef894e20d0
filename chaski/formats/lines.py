"""Lines of sub-blocks: scales and minimums that are small multiples of two numbers of their block.

The best line of a sub-block has to be rounded to such multiples. This loses most where one element counts a
thousandfold, or where all elements lie on a grid. So the lines around the best one are compared by the error
that the elements have with them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski import _native
from chaski.formats.quant import Bytes, Floats
from chaski.formats.scale_search import nearest_levels, reciprocal

__all__ = ["LineBlocks", "LineSearch"]

Halves: TypeAlias = NDArray[np.float16]

_LARGEST_HALF = np.float32(65504)
_STEPS = np.array([0, -1, 1], np.float32)
_CHOSEN_STEPS = np.stack([_STEPS.repeat(3), np.tile(_STEPS, 3)])  # for both multiples, by number of the line
_NUM_SUMS = 6  # of `choose_lines`
_SAME_DIRECTION = 1e-9


class LineBlocks(Struct, frozen=True):
    """Blocks whose elements are `unit * multiple * level - unit * multiple`.

    units: of scales and of minimums, float16, (2, blocks). multiples: small whole numbers, (2, blocks,
    sub-blocks). levels: (blocks, elements). error: the weighted sum of each block, (blocks,).
    """

    units: Halves
    multiples: Floats
    levels: Bytes
    error: Floats

    def take_better(self, other: LineBlocks) -> None:
        """Replace the blocks that are better in `other`."""
        better = np.flatnonzero(other.error < self.error)
        self.units[:, better] = other.units[:, better]
        self.multiples[:, better] = other.multiples[:, better]
        self.levels[better] = other.levels[better]
        self.error[better] = other.error[better]


class LineSearch(Struct, frozen=True):
    """A search for multiples of two units near the best lines of sub-blocks.

    parts, weights: (sub-blocks of all blocks, elements). top: the highest level. top_scale: the highest
    multiple. lines: scales and minimums of the best lines, (2, blocks, sub-blocks).
    """

    parts: Floats
    weights: Floats
    top: int
    top_scale: int
    lines: Floats

    def blocks(self, units: Floats) -> LineBlocks:
        """Find blocks with these units, (2, blocks), or with those that suit the found levels better."""
        found, sums = self._with_units(units)
        second, _ = self._with_units(_best_units(found, sums))
        found.take_better(second)
        return found

    def _with_units(self, units: Floats) -> tuple[LineBlocks, Floats]:
        """Return the best blocks with these units, and the sums of their sub-blocks."""
        halves = units.clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
        stored = halves.astype(np.float32)[:, :, None]
        nearest = nearest_levels(self.lines * reciprocal(stored), 0, self.top_scale)
        count = len(self.parts)
        tried = stored[:, None] * (nearest[:, None] + _STEPS[:, None, None]).clip(0, self.top_scale)
        scales, minimums = tried.reshape(2, len(_STEPS), count)
        choices, levels = np.empty(count, np.uint8), np.empty(self.parts.shape, np.uint8)
        sums = np.empty((count, _NUM_SUMS), np.float32)
        _native.choose_lines(
            self.parts,
            self.top,
            scales,
            minimums,
            self.weights,
            choices,
            levels,
            sums,
        )
        multiples = nearest + _CHOSEN_STEPS.take(choices, axis=1).reshape(nearest.shape)
        multiples.clip(0, self.top_scale, out=multiples)
        of_blocks = sums.reshape(*multiples.shape[1:], _NUM_SUMS)
        error = of_blocks[:, :, 0].sum(axis=1)
        return LineBlocks(halves, multiples, levels.reshape(len(error), -1), error), of_blocks


def _best_units(found: LineBlocks, sums: Floats) -> Floats:
    """Return the units with the least error for the found levels, by weighted least squares."""
    _, w, x, level, ll, xl = np.ascontiguousarray(np.moveaxis(sums, 2, 0), np.float64)
    s, m = found.multiples.astype(np.float64)
    of_pairs = np.stack([s * s * ll, s * m * level, m * m * w, s * xl, m * x])
    ss, sm, mm, sx, mx = of_pairs.sum(axis=2)
    determinant = ss * mm - sm * sm
    is_line = determinant > _SAME_DIRECTION * ss * mm
    determinant = np.where(is_line, determinant, 1)
    through_zero = sx / np.where(ss > 0, ss, 1)
    d = np.where(is_line, (sx * mm - sm * mx) / determinant, through_zero)
    dmin = np.where(is_line, (sx * sm - ss * mx) / determinant, 0).clip(0)
    return np.stack([d, dmin]).astype(np.float32)
