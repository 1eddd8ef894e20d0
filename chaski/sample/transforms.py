"""The definition of sampling: pure functions, one a step, on token ids and their logits or weights.

It runs when few tokens remain; when many do, `chaski.sample.bucket_selection` must agree with it.

From the softmax on, a probability is a weight: a whole number from 0 to 2**33, held in float64. Whole numbers
below 2**53 add up exactly, so a sum does not depend on the order of its terms, and the token that is drawn
does not depend on whether the tokens were sorted first. A token 2**33 times less likely than the top one
has weight 0. Exponentials and logarithms are the native core's: NumPy's differ in their last bits between
processors.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from chaski.errors import SamplingError
from chaski.same_bits import exponential_sum, exponentials, logarithm, logarithms
from chaski.sample.options import SamplingOptions

__all__ = [
    "MAX_VOCABULARY",
    "Logits",
    "TokenIds",
    "TokenWeights",
    "add_bias",
    "choose",
    "draw",
    "draw_mass",
    "exclude_top",
    "limit_temperature",
    "log_probabilities",
    "min_p",
    "nucleus_mass",
    "penalize",
    "repetition_penalty",
    "rule_out",
    "softmax",
    "softmax_numerators",
    "surprisal_deviations",
    "temperature",
    "top_choices",
    "top_k",
    "top_n_sigma",
    "top_p",
    "typical_p",
]

TokenIds = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]
TokenWeights = npt.NDArray[np.float64]

_TOP_WEIGHT = 2.0**33
# This many tokens at the top weight still add up to no more than 2**53.
MAX_VOCABULARY = 2**20

_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-7, 1e38


def choose(
    ids: TokenIds, logits: Logits, options: SamplingOptions, random: int, excludes_top: bool = False
) -> int:
    """The token that a random number below 2**24 picks after all truncations. ids, logits: (n,), n >= 1."""
    ids, logits = top_k(ids, logits, options.top_k)
    weights = softmax(temperature(logits, options.temperature))
    ids, weights = typical_p(ids, weights, options.typical_p)
    ids, weights = top_p(ids, weights, options.top_p)
    ids, weights = min_p(ids, weights, options.min_p)
    if excludes_top:
        ids, weights = exclude_top(ids, weights, options.xtc_threshold)
    return draw(ids, weights, random)


def add_bias(logits: Logits, ids: TokenIds, biases: Logits) -> Logits:
    """A copy of the logits with those of some tokens raised or lowered, as `logit_bias` of the OpenAI API.

    logits: (vocabulary,); ids: distinct tokens, (m,), and the amounts to add to each, (m,).
    """
    biased = logits.copy()
    biased[ids] += biases
    return biased


def penalize(logits: Logits, ids: TokenIds, counts: TokenWeights, options: SamplingOptions) -> Logits:
    """A copy of the logits with those of the recent tokens lowered.

    logits: (vocabulary,); ids, counts: the distinct recent tokens and how often each occurs, (m,).
    The repeat penalty is from Keskar et al. 2019, "CTRL", with the sign rule that makes it a penalty for
    negative logits too; the other two are those of the OpenAI API.
    """
    recent = logits[ids].astype(np.float64)
    recent = np.where(recent > 0, recent / options.repeat_penalty, recent * options.repeat_penalty)
    penalized = logits.copy()
    penalized[ids] = recent - counts * options.frequency_penalty - options.presence_penalty
    return penalized


def repetition_penalty(logits: Logits, ids: TokenIds, penalty: float) -> Logits:
    """A copy of the logits with those of tokens divided, or multiplied where they are negative. ids: (m,)."""
    seen = logits[ids].astype(np.float64)
    penalized = logits.copy()
    penalized[ids] = np.where(seen > 0, seen / penalty, seen * penalty)
    return penalized


def subtract(logits: Logits, ids: TokenIds, amounts: TokenWeights) -> Logits:
    """A copy of the logits with something subtracted from those of distinct tokens. ids, amounts: (m,)."""
    changed = logits.copy()
    changed[ids] = logits[ids].astype(np.float64) - amounts
    return changed


def rule_out(logits: Logits, ids: list[int]) -> Logits:
    """A copy of the logits in which some tokens cannot be chosen."""
    changed = logits.copy()
    changed[[token for token in ids if token < logits.size]] = -np.inf
    return changed


def top_n_sigma(logits: Logits, n: float) -> Logits:
    """A copy in which the tokens more than n standard deviations below the top one cannot be chosen.

    Mean and deviation are of all logits that are finite, in float64.
    """
    if n <= 0:
        return logits
    finite = logits[np.isfinite(logits)].astype(np.float64)
    if finite.size < 2:
        return logits
    bound = np.float64(finite.max() - n * finite.std())
    return np.where(logits.astype(np.float64) < bound, np.float32(-np.inf), logits)


def top_k(ids: TokenIds, logits: Logits, k: int) -> tuple[TokenIds, Logits]:
    """The k largest in descending order, equal ones by ascending id; all of them if k is 0 or less."""
    order = np.lexsort((ids, -logits))
    if k > 0:
        order = order[:k]
    return ids[order], logits[order]


def temperature(logits: Logits, value: float) -> Logits:
    """Logits divided by the temperature: below 1 sharpens, above 1 flattens."""
    return logits / np.float32(limit_temperature(value))


def limit_temperature(value: float) -> float:
    """The temperature that is used: neither 0 nor infinite as a float32."""
    return min(max(value, _MIN_TEMPERATURE), _MAX_TEMPERATURE)


def softmax(logits: Logits, out: TokenWeights | None = None) -> TokenWeights:
    """The weight of each token: e to its distance from the top logit, in units of 2**-33, rounded down.

    `out` takes the result, as in NumPy.
    """
    weights: TokenWeights = np.multiply(softmax_numerators(logits), _TOP_WEIGHT, out=out, dtype=np.float64)
    np.floor(weights, out=weights)
    return weights


def softmax_numerators(logits: Logits) -> Logits:
    """The numerators of the softmax: e to the distance of each logit from the top one."""
    top = logits.max()
    if not np.isfinite(top):
        raise SamplingError(f"the largest logit over the temperature is {top}; use a higher temperature")
    return exponentials(logits, float(top))


def typical_p(ids: TokenIds, weights: TokenWeights, p: float) -> tuple[TokenIds, TokenWeights]:
    """The tokens of the most typical surprisal, up to and including the one that takes them above p."""
    if p >= 1:
        return ids, weights
    order = np.lexsort((ids, surprisal_deviations(weights)))
    sums = weights[order].cumsum()
    count = int(np.searchsorted(sums, nucleus_mass(weights, p), side="right")) + 1
    kept = np.sort(order[:count])
    return ids[kept], weights[kept]


def surprisal_deviations(weights: TokenWeights) -> TokenWeights:
    """The distance of each surprisal (minus the log of the probability) from the mean, in nats."""
    # A weight of 0 counts as a half: it is never drawn, but needs a finite place in the order.
    surprisals = logarithm(_TOP_WEIGHT) - logarithms(np.maximum(weights, 0.5))
    # Whole numbers again, so that the mean does not depend on the order of the tokens.
    mean = np.floor(weights * surprisals).sum() / weights.sum()
    deviations: TokenWeights = np.abs(surprisals - mean)
    return deviations


def top_p(ids: TokenIds, weights: TokenWeights, p: float) -> tuple[TokenIds, TokenWeights]:
    """The first tokens, up to and including the one that takes them above p."""
    if p >= 1:
        return ids, weights
    count = int(np.searchsorted(weights.cumsum(), nucleus_mass(weights, p), side="right")) + 1
    return ids[:count], weights[:count]


def nucleus_mass(weights: TokenWeights, p: float) -> float:
    """The sum of weights that the tokens to keep must exceed. It is below the total, because p < 1."""
    return max(p, 0.0) * float(weights.sum())


def min_p(ids: TokenIds, weights: TokenWeights, p: float) -> tuple[TokenIds, TokenWeights]:
    """The tokens of at least p times the largest probability."""
    kept = weights >= min(p, 1.0) * weights.max()
    return ids[kept], weights[kept]


def exclude_top(ids: TokenIds, weights: TokenWeights, threshold: float) -> tuple[TokenIds, TokenWeights]:
    """Without the tokens of at least this probability, but for the last of them. In descending order."""
    above = np.flatnonzero(top_choices(weights, threshold))
    kept = np.ones(ids.size, bool)
    kept[above[:-1]] = False
    return ids[kept], weights[kept]


def top_choices(weights: TokenWeights, threshold: float) -> npt.NDArray[np.bool_]:
    """Mark the tokens that have at least this probability among those that are left."""
    return (weights > 0) & (weights >= threshold * float(weights.sum()))


def draw(ids: TokenIds, weights: TokenWeights, random: int) -> int:
    """The first token with weight at which the sum of weights reaches random / 2**24 of the total."""
    return int(ids[np.searchsorted(weights.cumsum(), draw_mass(weights, random))])


def draw_mass(weights: TokenWeights, random: int) -> int:
    """random / 2**24 of the total weight, rounded up, and at least 1; exact."""
    return max(1, -(-random * int(weights.sum()) >> 24))


def log_probabilities(logits: Logits, ids: TokenIds) -> npt.NDArray[np.float64]:
    """The natural logs of the softmax of all logits, for these ids; sums in float64.

    Raises SamplingError where the logits have none, since one is NaN or infinite.
    """
    top = float(logits.max())
    if not math.isfinite(top):
        raise SamplingError(
            f"logit {int(logits.argmax())} is {top}: there are no log-probabilities; check the model"
        )
    total = logarithm(exponential_sum(logits, top))
    logprobs: npt.NDArray[np.float64] = logits[ids].astype(np.float64) - (top + total)
    return logprobs
