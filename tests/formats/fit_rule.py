"""The search for scales of blocks in NumPy, by the rule of `native/kernels/fit_blocks.cpp`.

Every sum adds its terms in the order of the elements, each rounded, so that the bits are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chaski.formats.quant import Bytes, Floats
from chaski.formats.scale_search import extreme, nearest_levels, reciprocal

_SAME_LEVELS = 1e-6  # a relative spread of levels that only rounding can cause
_SAME_ERROR = np.float32(1e-12)  # so are smaller errors, and larger gains: the first line is kept
_SAME_GAIN = np.float32(1) + np.float32(2e-7)


def in_order(terms: Floats) -> Floats:
    """Return the sum of each row, added term by term."""
    total = np.zeros(len(terms), np.float32)
    for column in terms.T:
        total = total + column
    return total


def affine(x: Floats, top: int, intervals: Floats, weights: Floats | None = None) -> tuple[Floats, Floats]:
    search = _LineSearch(x, top, weights)
    high = x.max(axis=1)
    lowest = search.low
    for number in intervals:
        start = search.low if weights is None else lowest
        search.propose(reciprocal(high - start) * number, start)
    for _ in range(2):
        search.propose(reciprocal(search.scale), search.low)
    return search.scale, 0 - search.low


class _LineSearch:
    """The best line `scale * level + low`, with `low <= 0`, found so far for each row of x.

    Errors are weighted: by default large values count more, because they move a dot product most.
    """

    def __init__(self, x: Floats, top: int, weights: Floats | None) -> None:
        low = x.min(axis=1)
        self.low = np.where(low < 0, low, np.float32(0))
        self.scale = np.zeros_like(self.low)
        self._error = np.full_like(self.low, np.inf)
        self._x, self._top, self._is_weighted = x, top, weights is not None
        self._pivot = np.zeros_like(self.low)
        if weights is None:
            self._weight = np.abs(x) + np.sqrt(in_order(x * x) / np.float32(x.shape[1]))[:, None]
        else:
            self._weight = weights
            self._pivot = np.take_along_axis(x, weights.argmax(axis=1, keepdims=True), axis=1)[:, 0]
        self._from_pivot = x - self._pivot[:, None]
        self._sum_w = in_order(self._weight)
        self._sum_x = in_order(self._weight * self._from_pivot)
        self._sum_xx = in_order(self._weight * self._from_pivot * self._from_pivot)

    def propose(self, inverse: Floats, start: Floats) -> None:
        """Fit a line to the levels of x on the grid `inverse * (x - start)`; keep it if it is better."""
        levels = self._levels(self._x, inverse, start)
        at = self._levels(self._pivot[:, None], inverse, start)[:, 0]
        at = at if self._is_weighted else np.zeros_like(at)
        from_at = levels - at[:, None]
        weighted = self._weight * from_at
        sums = [in_order(each) for each in (weighted, weighted * from_at, weighted * self._from_pivot)]
        scale, low = self._fit(sums, at)
        if self._is_weighted:
            rest = (scale[:, None] * levels + low[:, None]) - self._x
            error = in_order(self._weight * (rest * rest))
        else:
            sum_l, sum_ll, sum_xl = sums
            slope_part = scale * (scale * sum_ll - 2 * sum_xl)
            low_part = low * (low * self._sum_w + 2 * (scale * sum_l - self._sum_x))
            error = self._sum_xx + slope_part + low_part
        better = (error < self._error - _SAME_ERROR * self._sum_xx) & (scale > 0)
        self._error = np.where(better, error, self._error)
        self.scale = np.where(better, scale, self.scale)
        self.low = np.where(better, low, self.low)

    def _levels(self, x: Floats, inverse: Floats, start: Floats) -> Floats:
        return nearest_levels((x - start[:, None]) * inverse[:, None], 0, self._top)

    def _fit(self, sums: list[Floats], at: Floats) -> tuple[Floats, Floats]:
        """Return the weighted least-squares line of x over the levels, from sums about the pivot.

        It goes through zero if it would start above zero, or if all levels are the same.
        """
        sum_l, sum_ll, sum_xl = sums
        determinant = self._sum_w * sum_ll - sum_l * sum_l
        is_line = determinant > np.float32(_SAME_LEVELS) * self._sum_w * sum_ll
        inverse = reciprocal(np.where(is_line, determinant, np.float32(0)))
        scale = (self._sum_w * sum_xl - sum_l * self._sum_x) * inverse
        low = ((sum_ll * self._sum_x - sum_l * sum_xl) * inverse + self._pivot) - scale * at
        through_zero = (low > 0) | (inverse == 0)
        from_zero = sum_ll + at * (2 * sum_l + at * self._sum_w)
        product = (sum_xl + at * self._sum_x) + self._pivot * (sum_l + at * self._sum_w)
        slope = np.where(through_zero, product * reciprocal(from_zero), scale)
        return slope, np.where(through_zero | (low >= 0), np.float32(0), low)


def symmetric(x: Floats, low: int, high: int, places: Floats, weights: Floats | None = None) -> Floats:
    return _projection(x, lambda values: nearest_levels(values, low, high), places, weights)


def listed(x: Floats, values: Floats, places: Floats, weights: Floats | None = None) -> Floats:
    doubled_middles = values[1:] + values[:-1]

    def nearest(scaled: Floats) -> Floats:
        halves = np.trunc(np.clip(scaled + scaled + np.float32(256), 0, 511)) - 256
        return values[np.searchsorted(doubled_middles, halves, "right")]

    return _projection(x, nearest, places, weights)


def _projection(
    x: Floats, levels_of: Callable[[Floats], Floats], places: Floats, weights: Floats | None
) -> Floats:
    """Return the scales of the best levels: those whose projection of x is the longest."""
    inverse = reciprocal(extreme(x))
    best_scale, best_gain = np.zeros_like(inverse), np.zeros_like(inverse)
    for place in places:
        levels = levels_of(x * (inverse * place)[:, None])
        weighted = (x * x if weights is None else weights) * levels
        sum_xl = in_order(weighted * x)
        scale = sum_xl * reciprocal(in_order(weighted * levels))
        gain = scale * sum_xl
        better = gain > _SAME_GAIN * best_gain
        best_gain = np.where(better, gain, best_gain)
        best_scale = np.where(better, scale, best_scale)
    return best_scale


def lines(
    x: Floats, top: int, scales: Floats, minimums: Floats, weights: Floats
) -> tuple[Bytes, Floats, Floats]:
    """Return the number of the best line of each row, the levels, and the sums."""
    least = np.full(len(x), np.inf, np.float32)
    choices, levels = np.zeros(len(x), np.uint8), np.zeros_like(x)
    for number in range(len(scales) * len(minimums)):
        scale, minimum = scales[number // len(scales)], minimums[number % len(scales)]
        found = nearest_levels((x + minimum[:, None]) * reciprocal(scale)[:, None], 0, top)
        rest = (scale[:, None] * found - minimum[:, None]) - x
        error = in_order(weights * (rest * rest))
        better = error < least
        least, choices = np.where(better, error, least), np.where(better, np.uint8(number), choices)
        levels = np.where(better[:, None], found, levels)
    weighted = weights * levels
    terms = (weights, weights * x, weighted, weighted * levels, weighted * x)
    return choices, levels, np.stack([least, *map(in_order, terms)], axis=1)
