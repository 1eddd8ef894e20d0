"""Scales of quantized blocks: a search for those with the smallest error, by the native core.

The formats define what a scale means, not how to choose it. Every function works on all rows at once.
"""

from __future__ import annotations

import numpy as np

from chaski import _native
from chaski.formats.quant import Floats

__all__ = ["extreme", "fit_affine", "fit_symmetric", "intervals", "nearest_levels", "places", "reciprocal"]

_NEGLIGIBLE = 1e-15  # every half-precision scale for a smaller spread is zero
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


def intervals(top: int) -> Floats:
    """Numbers of intervals over the range of a row that `fit_affine` tries: fewer and more than `top`.

    `top` itself comes first, from the lowest value, which finds the grid of weights that lie on one already.
    """
    return np.concatenate([[top], top + _GRID_STEPS]).astype(np.float32)


def places() -> Floats:
    """Where `fit_symmetric` puts the value of largest magnitude: around level -32."""
    return (32 + _EXTREME_STEPS).astype(np.float32)


def fit_affine(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Find scale and minimum >= 0 of each row with small weighted error of `scale * level - minimum`.

    First come grids with fewer or more intervals than `top` over the row's range, then grids of the best line
    itself: the classic alternation of assigning levels and fitting the line. x: (rows, 32).
    """
    return _native.fit_affine(x, top, intervals(top))


def fit_symmetric(x: Floats) -> Floats:
    """Find the scale of each row with small error of `scale * level`, levels -32 to 31. x: (rows, 16).

    Each step puts the value of largest magnitude at another place near level -32; the best scale for the
    levels that x then has is a projection (weighted by x squared), and its length says how good it is.
    """
    return _native.fit_symmetric(x, places())
