"""Masks as matrices, for backends that wish for them; caches themselves think in spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["dense_mask"]


def dense_mask(
    history: npt.NDArray[np.int32], spans: npt.NDArray[np.int32], num_cells: int
) -> npt.NDArray[Any]:
    """`Mask` as a matrix of float32 (tokens, cells): 0 where a token sees a cell, else minus infinity."""
    lengths = spans[:, 1] - spans[:, 0]
    tokens = np.repeat(np.arange(len(spans)), lengths)
    # How far each visible entry of the history is from where its token's span begins.
    steps = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    matrix = np.full((len(spans), num_cells), -np.inf, np.float32)
    matrix[tokens, history[spans[tokens, 0] + steps]] = 0
    return matrix
