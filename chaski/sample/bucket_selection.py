"""Bucket selection chooses among many tokens without sorting them: the steps and tokens of `transforms`.

A step that needs the tokens in order only needs the place in that order where a sum of weights passes some
mass. So tokens are put into buckets by key, the weights of each bucket are added up, and only the bucket in
which the mass is passed is sorted. Sums of weights are exact (see `transforms`), so this finds the same place
as sorting does. A dropped token keeps its place with weight 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaski.sample.options import SamplingOptions
from chaski.sample.transforms import (
    Logits,
    TokenIds,
    TokenWeights,
    draw_mass,
    limit_temperature,
    nucleus_mass,
    softmax,
    surprisal_deviations,
    temperature,
    top_choices,
)

__all__ = ["BucketOrder", "BucketSelection", "candidates", "top_k_ids"]

_NUM_BUCKETS = 2048
# No token has weight and a surprisal of more than this: 24 > log(2**33).
_MAX_SURPRISAL = 24.0
# Keeps the width of a bucket above 0 when all keys are equal.
_MIN_SPAN = 1e-6
_MAX_ROWS = 64


def candidates(logits: Logits, k: int) -> TokenIds:
    """Ascending ids that include the k largest logits, mostly few more. k >= 1."""
    num_rows = min(_MAX_ROWS, logits.size // (2 * k))
    if num_rows < 2:
        return np.arange(logits.size)
    num_columns = logits.size // num_rows
    columns = logits[: num_rows * num_columns].reshape(num_rows, num_columns).max(axis=0)
    # k columns have a maximum of at least this, so at least k logits do.
    bound = np.partition(columns, num_columns - k)[num_columns - k]
    return np.flatnonzero(logits >= bound)


def top_k_ids(logits: Logits, k: int) -> TokenIds:
    """Ascending ids of the k largest logits, of equal ones those with the lowest ids. k < vocabulary."""
    bound = np.partition(logits, logits.size - k)[logits.size - k]
    kept = logits >= bound
    excess = int(np.count_nonzero(kept)) - k
    if excess:
        kept[np.flatnonzero(logits == bound)[-excess:]] = False
    return np.flatnonzero(kept)


class BucketSelection:
    """Chooses among up to `size` tokens.

    Its buffers are kept, because the page faults of fresh ones can cost more than all the arithmetic.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._weights = np.empty(size)
        self._buckets = np.empty(size, np.intp)

    def choose(
        self, logits: Logits, options: SamplingOptions, random: int, excludes_top: bool = False
    ) -> int:
        """The token that `transforms.choose` would choose. logits: (size,)."""
        if 0 < options.top_k < logits.size:
            ids = top_k_ids(logits, options.top_k)
            return int(ids[self._choose_from_all(logits[ids], options, random, excludes_top)])
        return self._choose_from_all(logits, options, random, excludes_top)

    def _choose_from_all(
        self, logits: Logits, options: SamplingOptions, random: int, excludes_top: bool
    ) -> int:
        weights = softmax(temperature(logits, options.temperature), out=self._weights[: logits.size])
        buckets = self._buckets[: logits.size]
        if options.typical_p < 1:
            by_surprisal = BucketOrder(-surprisal_deviations(weights), _MAX_SURPRISAL, buckets)
            by_surprisal.truncate(weights, nucleus_mass(weights, options.typical_p))
        # By logits, not by weights: division by the temperature and rounding make some of them equal.
        order = BucketOrder(logits, _MAX_SURPRISAL * limit_temperature(options.temperature), buckets)
        if options.top_p < 1:
            order.truncate(weights, nucleus_mass(weights, options.top_p))
        if options.min_p > 0:
            weights *= weights >= min(options.min_p, 1.0) * weights.max()
        if excludes_top:
            _exclude_top(logits, weights, options.xtc_threshold)
        return order.find(weights, draw_mass(weights, random) - 1)


def _exclude_top(logits: Logits, weights: TokenWeights, threshold: float) -> None:
    """Set the weights of the top choices to 0, but for the least likely of them."""
    above = np.flatnonzero(top_choices(weights, threshold))
    if above.size > 1:
        least = above[logits[above] == logits[above].min()][-1]
        weights[above[above != least]] = 0


class BucketOrder:
    """Tokens by descending key, equal keys by ascending index.

    keys: (n,), floats, the largest finite; max_span: only tokens nearer than this to the largest key have
    weight; buckets: (n,), room for the bucket of each token.
    """

    def __init__(self, keys: npt.NDArray[np.floating], max_span: float, buckets: TokenIds) -> None:
        self._keys = keys
        self._buckets = buckets
        top = keys.max()
        span = max(min(float(top - keys.min()), max_span), _MIN_SPAN)
        distances = top - keys
        distances *= _NUM_BUCKETS / span
        np.minimum(distances, _NUM_BUCKETS - 1, out=distances)
        np.copyto(buckets, distances, casting="unsafe")

    def find(self, weights: TokenWeights, mass: float) -> int:
        """The first token at which the sum of weights exceeds the mass, which is below their total."""
        sums = np.bincount(self._buckets, weights).cumsum()
        bucket = int(np.searchsorted(sums, mass, side="right"))
        before = sums[bucket - 1] if bucket else 0.0
        members = np.flatnonzero(self._buckets == bucket)
        members = members[np.argsort(-self._keys[members], kind="stable")]
        return int(members[np.searchsorted(before + weights[members].cumsum(), mass, side="right")])

    def truncate(self, weights: TokenWeights, mass: float) -> None:
        """Set the weight of every token after `find(weights, mass)` to 0."""
        last = self.find(weights, mass)
        kept = self._keys > self._keys[last]
        ties = np.flatnonzero(self._keys == self._keys[last])
        kept[ties[ties <= last]] = True
        weights *= kept
