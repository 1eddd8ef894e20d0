"""Scales of quantized blocks: a search for those with the smallest error, in NumPy.

The formats fix what a scale means, not how to choose it. Every function works on all rows at once.
"""

from __future__ import annotations

import numpy as np

from chaski.formats.quant import Floats

__all__ = ["extreme", "fit_affine", "fit_symmetric", "nearest_levels", "reciprocal"]

_NEGLIGIBLE = 1e-15  # a spread below this is no spread: every half-precision scale for it is zero
_SAME_LEVELS = 1e-6  # a relative spread of levels that only rounding can cause
_GRID_STEPS = np.arange(-2.0, 1.1, 0.2)
_EXTREME_STEPS = np.arange(-0.9, 1.0, 0.1)


def nearest_levels(values: Floats, low: int, high: int) -> Floats:
    """Round to the nearest whole level within the range."""
    return np.clip(np.rint(values), low, high)


def reciprocal(values: Floats) -> Floats:
    """1 / x, and 0 where x is 0 or negligible."""
    usable = np.abs(values) > _NEGLIGIBLE
    return np.divide(1, values, out=np.zeros_like(values), where=usable)


def extreme(values: Floats) -> Floats:
    """The value of largest magnitude of each row, with its sign."""
    place = np.abs(values).argmax(axis=1, keepdims=True)
    return np.take_along_axis(values, place, axis=1)[:, 0]


def fit_affine(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Find scale and minimum >= 0 of each row with small weighted error of `scale * level - minimum`.

    First come grids with fewer or more intervals than `top` over the row's range, then grids of the best line
    itself: the classic alternation of assigning levels and fitting the line.
    """
    search = _LineSearch(x, top)
    high = x.max(axis=1)
    for step in _GRID_STEPS:
        search.propose(reciprocal(high - search.low) * np.float32(top + step))
    for _ in range(2):
        search.propose(reciprocal(search.scale))
    return search.scale, -search.low


class _LineSearch:
    """The best line `scale * level + low`, with `low <= 0`, found so far for each row of x.

    Errors are weighted: large values count more, because they move a dot product most.
    """

    def __init__(self, x: Floats, top: int) -> None:
        self.low = np.minimum(x.min(axis=1), 0)
        self.scale = np.zeros_like(self.low)
        self._error = np.full_like(self.low, np.inf)
        self._x, self._top = x, top
        self._weight = np.abs(x) + np.sqrt(np.mean(x * x, axis=1, keepdims=True))
        self._sum_w = self._weight.sum(axis=1)
        self._sum_x = _dot(self._weight, x)
        self._sum_xx = _dot(self._weight * x, x)

    def propose(self, inverse: Floats) -> None:
        """Give x the levels of the grid `inverse * (x - low)` and fit the line to them; keep it if better."""
        levels = nearest_levels((self._x - self.low[:, None]) * inverse[:, None], 0, self._top)
        weighted = self._weight * levels
        sum_l, sum_ll, sum_xl = weighted.sum(axis=1), _dot(weighted, levels), _dot(weighted, self._x)
        scale, low = self._fit(sum_l, sum_ll, sum_xl)
        slope_part = scale * (scale * sum_ll - 2 * sum_xl)
        low_part = low * (low * self._sum_w + 2 * (scale * sum_l - self._sum_x))
        error = self._sum_xx + slope_part + low_part
        better = (error < self._error) & (scale > 0)
        self._error = np.where(better, error, self._error)
        self.scale = np.where(better, scale, self.scale)
        self.low = np.where(better, low, self.low)

    def _fit(self, sum_l: Floats, sum_ll: Floats, sum_xl: Floats) -> tuple[Floats, Floats]:
        """The weighted least-squares line of x over the levels.

        It goes through zero where it would start above, or where all levels are the same.
        """
        determinant = self._sum_w * sum_ll - sum_l * sum_l
        inverse = reciprocal(np.where(determinant > _SAME_LEVELS * self._sum_w * sum_ll, determinant, 0))
        low = (sum_ll * self._sum_x - sum_l * sum_xl) * inverse
        scale = (self._sum_w * sum_xl - sum_l * self._sum_x) * inverse
        through_zero = (low > 0) | (inverse == 0)
        return np.where(through_zero, sum_xl * reciprocal(sum_ll), scale), np.minimum(low, 0)


def _dot(a: Floats, b: Floats) -> Floats:
    """Row by row."""
    product: Floats = np.einsum("ij,ij->i", a, b)
    return product


def fit_symmetric(x: Floats) -> Floats:
    """Find the scale of each row with small error of `scale * level`, levels -32 to 31.

    Each step puts the value of largest magnitude at another place near level -32; the best scale for the
    levels that x then has is a projection (weighted by x squared), and its length says how good it is.
    """
    inverse = -reciprocal(extreme(x))
    weight = x * x
    best_scale, best_gain = np.zeros_like(inverse), np.zeros_like(inverse)
    for step in _EXTREME_STEPS:
        levels = nearest_levels(x * (inverse * np.float32(32 + step))[:, None], -32, 31)
        weighted = weight * levels
        sum_xl = _dot(weighted, x)
        scale = sum_xl * reciprocal(_dot(weighted, levels))
        gain = scale * sum_xl
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best_scale = np.where(better, scale, best_scale)
    return best_scale
