"""Blocks of lines in NumPy, by the rule of `native/line_blocks.cpp`.

The sums over elements are those of `fit_rule`; NumPy's own sums are part of the rule.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.formats.packing import pack
from chaski.formats.quant import Bytes, Floats, QuantType
from chaski.formats.scale_search import intervals, nearest_levels, reciprocal, scale_places
from tests.formats import fit_rule

Halves: TypeAlias = NDArray[np.float16]

SIZES = {QuantType.Q2_K: (16, 3, 15), QuantType.Q4_K: (32, 15, 63), QuantType.Q5_K: (32, 31, 63)}
"""Of each type the elements of a sub-block, their highest level, and the highest multiple."""
_LARGEST_HALF = np.float32(65504)
_STEPS = np.array([0, -1, 1], np.float32)
_CHOSEN_STEPS = np.stack([_STEPS.repeat(3), np.tile(_STEPS, 3)])  # for both multiples, by number of the line
_SAME_DIRECTION = 1e-9


def element_weights(x: Floats, importance: Floats | None = None) -> Floats:
    """Return the shares of elements in the error of blocks, (blocks, elements)."""
    squares = x * x
    weights: Floats = np.sqrt(squares + squares.mean(axis=1, keepdims=True) * np.float32(2))
    return weights if importance is None else weights * importance


def encode(x: Floats, type: QuantType, weights: Floats) -> bytes:
    """Encode blocks, (blocks, 256)."""
    size, top, top_multiple = SIZES[type]
    parts, part_weights = x.reshape(-1, size), weights.reshape(-1, size)
    lines = np.stack(fit_rule.affine(parts, top, intervals(top), part_weights)).reshape(2, len(x), -1)
    sums = part_weights.sum(axis=1).reshape(lines[0].shape)
    tried = scale_places(top_multiple)
    units = np.stack([fit_rule.symmetric(each, 0, top_multiple, tried, sums) for each in lines])
    found = LineSearch(parts, part_weights, top, top_multiple, lines).blocks(units)
    return _packed(found, type).tobytes()


def _packed(found: LineBlocks, type: QuantType) -> Bytes:
    units = np.ascontiguousarray(found.units.T, "<f2").view(np.uint8)
    scales, minimums = found.multiples.astype(np.uint8)
    if type is QuantType.Q2_K:
        return np.hstack([scales | minimums << 4, pack(found.levels, 2, 32), units])
    high = [pack(found.levels >> 4, 1, 32)] if type is QuantType.Q5_K else []
    return np.hstack([units, pack_scales_6bit(scales, minimums), *high, pack(found.levels & 15, 4, 32)])


def pack_scales_6bit(scales: Bytes, minimums: Bytes) -> Bytes:
    """Put 8 scales and 8 minimums of six bits into 12 bytes, as `unpack_scales_6bit` reads them."""
    low = np.hstack([scales[:, :4], minimums[:, :4]])
    top = np.hstack([scales[:, 4:], minimums[:, 4:]]) >> 4 << 6
    rest = scales[:, 4:] & 15 | minimums[:, 4:] << 4
    return np.hstack([low | top, rest])


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
        tried = stored[:, None] * (nearest[:, None] + _STEPS[:, None, None]).clip(0, self.top_scale)
        scales, minimums = tried.reshape(2, len(_STEPS), -1)
        choices, levels, sums = fit_rule.lines(self.parts, self.top, scales, minimums, self.weights)
        multiples = nearest + _CHOSEN_STEPS.take(choices, axis=1).reshape(nearest.shape)
        multiples.clip(0, self.top_scale, out=multiples)
        of_blocks = sums.reshape(*multiples.shape[1:], -1)
        error = of_blocks[:, :, 0].sum(axis=1)
        fields = levels.astype(np.uint8).reshape(len(error), -1)
        return LineBlocks(halves, multiples, fields, error), of_blocks


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
