"""Scores of tokens from logits: surprisal, and the divergence from a reference.

Exponentials and logarithms are the native core's, so scores have the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski.same_bits import exponential_sum, exponentials, logarithm

__all__ = ["SCORE", "Scores", "compared", "scored"]

F32 = npt.NDArray[np.float32]

SCORE = np.dtype([("surprisal", "<f8"), ("reference", "<f8"), ("divergence", "<f8"), ("agrees", "<f8")])
"""The scores of a token.

surprisal   negative logarithm of its probability, in nats
reference   the same by the reference; NaN without one
divergence  Kullback-Leibler divergence of the model's distribution from the reference's, in nats
agrees      1 if both find the same token most likely, else 0
"""

Scores = npt.NDArray[np.void]
"""Scores of tokens (n,), of the type `SCORE`."""


def scored(logits: F32, targets: Sequence[int]) -> Scores:
    """Score the tokens `targets` (n,) that followed, by logits (n, vocabulary)."""
    found = np.full(len(logits), np.nan, SCORE)
    for score, row, target in zip(found, logits, targets, strict=True):
        score["surprisal"] = _log_sum(row) - float(row[target])
    return found


def compared(logits: F32, reference: F32, targets: Sequence[int]) -> Scores:
    """Score the tokens that followed by the logits of a model and of a reference, both (n, vocabulary)."""
    found = np.full(len(logits), np.nan, SCORE)
    for score, row, other, target in zip(found, logits, reference, targets, strict=True):
        whole, whole_other = _log_sum(row), _log_sum(other)
        weights = exponentials(other, float(other.max())).astype(np.float64)
        is_possible = weights > 0
        differences = np.subtract(other, row, dtype=np.float64, where=is_possible, out=np.zeros(len(row)))
        mean = float((weights * differences).sum() / weights.sum())
        score["surprisal"] = whole - float(row[target])
        score["reference"] = whole_other - float(other[target])
        # Rounding may leave a tiny negative number for equal distributions.
        score["divergence"] = max(0.0, mean + whole - whole_other)
        score["agrees"] = row.argmax() == other.argmax()
    return found


def _log_sum(row: F32) -> float:
    """Return the logarithm of the sum of the exponentials of a row."""
    highest = float(row.max())
    return highest + logarithm(exponential_sum(np.ascontiguousarray(row), highest))
