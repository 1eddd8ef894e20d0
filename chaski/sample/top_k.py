"""Choosing from the top logits that a plan has found: the same token as `transforms` chooses, sooner.

There are some dozens of them, and between two batches no cache of the processor holds any of this: then plain
Python on numbers is quicker than NumPy, whose functions take 10 µs each for their first use. Rounding stays
NumPy's, since its bits count; after it come whole numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from chaski.sample import transforms
from chaski.sample.options import SamplingOptions
from chaski.sample.transforms import Logits

__all__ = ["choose", "penalize"]

_TOP_WEIGHT = 2**33


def choose(
    ids: list[int], logits: Logits, options: SamplingOptions, random: int, excludes_top: bool = False
) -> int:
    """Return the token that `transforms.choose` would choose from up to `top_k` tokens in its order.

    logits: (n,).
    """
    if options.typical_p < 1 or excludes_top:
        return transforms.choose(np.array(ids), logits, options, random, excludes_top)
    scaled = transforms.temperature(logits, options.temperature)
    numerators: list[float] = transforms.softmax_numerators(scaled).tolist()
    weights = [int(numerator * _TOP_WEIGHT) for numerator in numerators]
    if options.top_p < 1:
        sums = list(accumulate(weights))
        mass = max(options.top_p, 0.0) * sums[-1]
        weights = weights[: bisect_right(sums, mass) + 1]
    if options.min_p > 0:
        smallest = min(options.min_p, 1.0) * max(weights)
        weights = [weight if weight >= smallest else 0 for weight in weights]
    sums = list(accumulate(weights))
    return ids[bisect_left(sums, max(1, -(-random * sums[-1] >> 24)))]


def penalize(
    ids: list[int], logits: list[float], counts: Mapping[int, float], options: SamplingOptions, most: int
) -> tuple[list[int], Logits] | None:
    """The `most` top logits after penalties that lower logits -> ids, logits (most,).

    ids, logits: the top logits before that, in order; counts: the recent tokens. None where too few of them
    keep their logits to be sure that no other token is among the `most`.
    """
    num_recent = sum(token_id in counts for token_id in ids)
    if len(ids) - num_recent < most:
        return None
    for place, token_id in enumerate(ids if num_recent else ()):
        if token_id in counts:
            logit = logits[place]
            logit = logit / options.repeat_penalty if logit > 0 else logit * options.repeat_penalty
            logits[place] = logit - counts[token_id] * options.frequency_penalty - options.presence_penalty
    rounded = np.array(logits, np.float32)
    values = rounded.tolist()
    order = sorted(range(len(ids)), key=lambda place: (-values[place], ids[place]))[:most]
    return [ids[place] for place in order], rounded[order]
