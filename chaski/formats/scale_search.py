"""Scales of quantized blocks: a search for those with the smallest error, by the native core.

The formats define what a scale means, not how to choose it. Every function works on all rows at once. Rows
have 8, 16 or 32 elements, and for `fit_from_minus_one` 64 or 256. `weights`, of the shape of the rows, are
the shares of the elements in the error.
"""

from __future__ import annotations

import numpy as np

from chaski import _native
from chaski.formats.quant import Floats, PackedBlocks, QuantType

__all__ = [
    "element_weights",
    "encode_lines",
    "extreme",
    "fit_affine",
    "fit_from_minus_one",
    "fit_listed",
    "fit_symmetric",
    "intervals",
    "nearest_levels",
    "places",
    "reciprocal",
    "scale_places",
]

_NEGLIGIBLE = 1e-15  # every half-precision scale for a smaller spread is zero
_FEW_LEVELS = 8
_GRID_STEPS = np.arange(-2.0, 1.1, 0.2)
_FEW_LEVELS_STEPS = np.arange(-0.8, 0.9, 0.2)
_EXTREME_STEPS = np.arange(-0.9, 1.0, 0.1)
_SCALE_STEPS = np.arange(-0.9, 1.0, 0.1)
_LISTED_STEPS = np.arange(-7.0, 7.5, 1.0)
_COARSE_PLACES = 1.15 ** np.arange(16)  # largest magnitudes over good scales: rarely above 8


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


def element_weights(x: Floats, importance: Floats | None = None) -> Floats:
    """Weights of elements by the importance of their columns, which has the shape of x; None: all alike.

    A large value moves a product most, so that magnitudes count too, but less than proportionally: an element
    of size zero still counts as one whose square is twice the mean.
    """
    return _native.element_weights(x, importance)


def intervals(top: int) -> Floats:
    """Numbers of intervals over the range of a row that `fit_affine` tries: fewer and more than `top`.

    `top` itself comes first, from the lowest value, which finds the grid of weights that lie on one already.
    With few levels, much smaller numbers would make scales that differ too much for their own few levels.
    """
    steps = _FEW_LEVELS_STEPS if top < _FEW_LEVELS else _GRID_STEPS
    return np.concatenate([[top], top + steps]).astype(np.float32)


def places(lowest: int = -32) -> Floats:
    """Where `fit_symmetric` puts the value of largest magnitude: around the lowest level."""
    return np.concatenate([[lowest], lowest - _EXTREME_STEPS]).astype(np.float32)


def scale_places(top: int) -> Floats:
    """Levels of the largest of several scales >= 0, which have levels 0 to `top`, that a search tries."""
    return np.concatenate([[top], top + _SCALE_STEPS]).astype(np.float32)


def fit_affine(x: Floats, top: int, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """Find scale and minimum >= 0 of each row with small weighted error of `scale * level - minimum`.

    First come grids with fewer or more intervals than `top` over the row's range, then grids of the best line
    itself: the classic alternation of assigning levels and fitting the line. By default, weights are the
    magnitudes plus their mean.
    """
    return _native.fit_affine(x, top, intervals(top), weights)


def fit_symmetric(x: Floats, lowest: int, weights: Floats | None = None) -> Floats:
    """Find the scale of each row with small error of `scale * level`, levels `lowest` to `-lowest - 1`.

    Each step puts the value of largest magnitude at another place near the lowest level; the best scale for
    the levels that x then has is a projection (weighted by x squared, by default), and its length says how
    good it is.
    """
    return _native.fit_symmetric(x, lowest, -lowest - 1, places(lowest), weights)


def encode_lines(type: QuantType, x: Floats, top: int, top_multiple: int, weights: Floats) -> PackedBlocks:
    """Encode blocks whose sub-blocks are lines: Q2_K, Q4_K and Q5_K.

    `top` is the highest level of an element. Scales and minimums are multiples 0 to `top_multiple` of two
    numbers of their block.
    """
    blocks = np.empty(len(x), type.layout)
    out = blocks.view(np.uint8).reshape(len(x), -1)
    _native.encode_lines(int(type), x, weights, intervals(top), scale_places(top_multiple), out)
    return blocks


def fit_from_minus_one(x: Floats, high: int, weights: Floats) -> Floats:
    """Find the scale of each row with small error of `scale * level`, levels -1 to `high` (1 or 2).

    With `high` 2 a scale may be negative, and the value of largest magnitude is tried at both ends.
    """
    tried = _COARSE_PLACES if high == 1 else np.concatenate([[1, 2], _COARSE_PLACES, -_COARSE_PLACES])
    return _native.fit_symmetric(x, -1, high, tried.astype(np.float32), weights)


def fit_listed(x: Floats, values: Floats, weights: Floats | None = None) -> Floats:
    """Find the scale of each row with small error of `scale * value`, for sixteen ascending values.

    The value of largest magnitude is tried near the lowest and near the highest of them.
    """
    tried = np.concatenate([values[0] + _LISTED_STEPS, [values[-1], -values[0]]]).astype(np.float32)
    return _native.fit_listed(x, values, tried, weights)
