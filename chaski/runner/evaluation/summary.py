"""`Summary`: the statistics of all scored tokens, in the definitions of llama.cpp's `llama-perplexity`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.runner.evaluation.scores import Scores

__all__ = ["PERCENTILES", "Comparison", "Estimate", "Summary"]

F64 = npt.NDArray[np.float64]

PERCENTILES = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0)


class Estimate(Struct, frozen=True):
    """A value with its standard error."""

    value: float
    error: float

    @classmethod
    def mean(cls, values: F64) -> Estimate:
        """Return the mean of values (n,). The error is 0 for a single one."""
        count = len(values)
        error = math.sqrt(float(values.var()) / (count - 1)) if count > 1 else 0.0
        return cls(float(values.mean()), error)


class Comparison(Struct, frozen=True):
    """How far a model's predictions are from those of the reference.

    perplexity_ratio    perplexity divided by that of the reference
    divergence          mean Kullback-Leibler divergence from the reference, in nats
    divergences         its percentiles, from the largest to the smallest; 100 and 0 are the extremes
    agreement           share of tokens for which both find the same one most likely
    change              mean change of the probability of the text's token
    root_mean_square    root of the mean square of that change
    """

    reference_perplexity: Estimate
    perplexity_ratio: Estimate
    divergence: Estimate
    divergences: Mapping[str, float]
    agreement: Estimate
    change: Estimate
    root_mean_square: Estimate


class Summary(Struct, frozen=True):
    """Perplexity is e to the mean surprisal; its error is the perplexity times the error of that mean."""

    tokens: int
    perplexity: Estimate
    comparison: Comparison | None

    @classmethod
    def of(cls, scores: Scores) -> Summary:
        """Summarize the scores of tokens (n,), at least one."""
        reference = scores["reference"]
        comparison = None if np.isnan(reference).any() else _comparison(scores)
        return cls(len(scores), _perplexity(scores["surprisal"]), comparison)


def _perplexity(surprisals: F64) -> Estimate:
    mean = Estimate.mean(surprisals)
    return _exponential(mean)


def _exponential(exponent: Estimate) -> Estimate:
    value = math.exp(exponent.value) if exponent.value < 700 else math.inf
    return Estimate(value, value * exponent.error)


def _comparison(scores: Scores) -> Comparison:
    own, other, divergences = scores["surprisal"], scores["reference"], scores["divergence"]
    changes = np.exp(-own) - np.exp(-other)
    square = Estimate.mean(changes**2)
    root = math.sqrt(square.value)
    return Comparison(
        reference_perplexity=_perplexity(other),
        perplexity_ratio=_exponential(Estimate.mean(own - other)),
        divergence=Estimate.mean(divergences),
        divergences={f"{each:g}": float(np.percentile(divergences, each)) for each in (100, *PERCENTILES, 0)},
        agreement=Estimate.mean(scores["agrees"]),
        change=Estimate.mean(changes),
        root_mean_square=Estimate(root, 0.5 * square.error / root if root else 0.0),
    )
