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
_STEPS = np.array([0, -1, 1], np.float32)[:, None, None]
_NUM_SUMS = 6  # of `choose_lines`
_SAME_DIRECTION = 1e-9


class LineBlocks(Struct, frozen=True):
    """Blocks whose elements are `d * scale * level - dmin * minimum`.

    d, dmin: float16, (blocks, 1). scales, minimums: small whole numbers, (blocks, sub-blocks). levels:
    (blocks, elements). error: the weighted sum of each block, (blocks, 1).
    """

    d: Halves
    dmin: Halves
    scales: Floats
    minimums: Floats
    levels: Bytes
    error: Floats

    def or_better(self, other: LineBlocks) -> LineBlocks:
        """Return the better one of each two blocks."""
        is_better = other.error < self.error
        names = self.__struct_fields__
        return LineBlocks(*(np.where(is_better, getattr(other, name), getattr(self, name)) for name in names))


class LineSearch(Struct, frozen=True):
    """A search for multiples of two units near the best lines of sub-blocks.

    parts, weights: (sub-blocks of all blocks, elements). top: the highest level. top_scale: the highest
    multiple. scales, minimums: the best lines, (blocks, sub-blocks).
    """

    parts: Floats
    weights: Floats
    top: int
    top_scale: int
    scales: Floats
    minimums: Floats

    def blocks(self, d: Floats, dmin: Floats) -> LineBlocks:
        """Find blocks with these units, (blocks,) each, or with those that suit the found levels better."""
        first, sums = self._with_units(d, dmin)
        second, _ = self._with_units(*_best_units(first, sums))
        return first.or_better(second)

    def _with_units(self, *units: Floats) -> tuple[LineBlocks, Floats]:
        """Return the best blocks with these units, and the sums of their sub-blocks."""
        halves = [unit.clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)[:, None] for unit in units]
        d, dmin = (half.astype(np.float32) for half in halves)
        scales, minimums = self._around(self.scales, d), self._around(self.minimums, dmin)
        count, tries = len(self.parts), len(_STEPS)
        choices, levels = np.empty(count, np.uint8), np.empty(self.parts.shape, np.uint8)
        sums = np.empty((count, _NUM_SUMS), np.float32)
        _native.choose_lines(
            self.parts,
            self.top,
            (d * scales).reshape(tries, count),
            (dmin * minimums).reshape(tries, count),
            self.weights,
            choices,
            levels,
            sums,
        )
        of_scale, of_minimum = np.divmod(choices.reshape(1, *self.scales.shape), tries)
        scales = np.take_along_axis(scales, of_scale, axis=0)[0]
        minimums = np.take_along_axis(minimums, of_minimum, axis=0)[0]
        sums = sums.reshape(*scales.shape, _NUM_SUMS)
        error = sums[:, :, 0].sum(axis=1, keepdims=True)
        return LineBlocks(
            halves[0], halves[1], scales, minimums, levels.reshape(len(scales), -1), error
        ), sums

    def _around(self, wanted: Floats, unit: Floats) -> Floats:
        """Return the multiples of the unit around the wanted numbers, the nearest one first."""
        nearest = nearest_levels(wanted * reciprocal(unit), 0, self.top_scale)
        multiples: Floats = (nearest + _STEPS).clip(0, self.top_scale)
        return multiples


def _best_units(found: LineBlocks, sums: Floats) -> tuple[Floats, Floats]:
    """Return the units with the least error for the found levels, by weighted least squares."""
    _, w, x, level, ll, xl = np.moveaxis(sums.astype(np.float64), 2, 0)
    s, m = found.scales, found.minimums
    of_pairs = (s * s * ll, s * m * level, m * m * w, s * xl, m * x)
    ss, sm, mm, sx, mx = (each.sum(axis=1) for each in of_pairs)
    determinant = ss * mm - sm * sm
    is_line = determinant > _SAME_DIRECTION * ss * mm
    determinant = np.where(is_line, determinant, 1)
    through_zero = sx / np.where(ss > 0, ss, 1)
    d = np.where(is_line, (sx * mm - sm * mx) / determinant, through_zero)
    dmin = np.where(is_line, (sx * sm - ss * mx) / determinant, 0).clip(0)
    return d.astype(np.float32), dmin.astype(np.float32)
