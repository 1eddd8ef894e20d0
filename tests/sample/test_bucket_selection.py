"""Choosing without a sort gives the same token as the definition."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chaski.sample import SamplingOptions
from chaski.sample import transforms as t
from chaski.sample.bucket_selection import BucketSelection, candidates, top_k_ids

# Few distinct values for ties, and arbitrary ones, close and far.
logit = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.5, -3.0, 20.0, -math.inf]),
    st.floats(-30, 30, width=32),
    st.floats(-(2.0**100), 2.0**100, width=32),
)
logits_strategy = (
    st.lists(logit, min_size=1, max_size=60)
    .filter(lambda values: max(values) > -math.inf)
    .map(lambda values: np.array(values, np.float32))
)
share = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))
options_strategy = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.01, 0.5, 0.8, 1.0, 1.9, 50.0]),
    top_k=st.integers(-1, 70),
    top_p=share,
    min_p=share,
    typical_p=share,
)
random_strategy = st.one_of(st.sampled_from([0, 1, 2**24 - 1]), st.integers(0, 2**24 - 1))


def define(logits: t.Logits, options: SamplingOptions, random: int) -> int:
    return t.choose(np.arange(logits.size), logits, options, random)


# typical_p drops the top token, and top_p at 0 must still keep one of the others.
@example(
    np.log(np.array([0.5, 0.25, 0.25], np.float32)),
    SamplingOptions(typical_p=0.2, top_p=0.0, temperature=2.0),
    5,
)
@given(logits_strategy, options_strategy, random_strategy)
def test_a_crowd_chooses_what_the_definition_chooses(
    logits: t.Logits, options: SamplingOptions, random: int
) -> None:
    logits.setflags(write=False)
    with np.errstate(over="ignore"):
        assert BucketSelection(logits.size).choose(logits, options, random) == define(logits, options, random)


@given(logits_strategy, st.integers(1, 70))
def test_candidates_hold_the_largest(logits: t.Logits, k: int) -> None:
    ids = candidates(logits, k)
    assert (np.diff(ids) > 0).all()
    expected = t.top_k(np.arange(logits.size), logits, k)
    kept = t.top_k(ids, logits[ids], k)
    assert kept[0].tolist() == expected[0].tolist()


@given(logits_strategy.filter(lambda logits: logits.size > 1), st.data())
def test_largest_are_exactly_those_of_top_k(logits: t.Logits, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, logits.size - 1))
    assert top_k_ids(logits, k).tolist() == sorted(t.top_k(np.arange(logits.size), logits, k)[0].tolist())


def model_like(rng: np.random.Generator, size: int) -> t.Logits:
    """Return logits with a long tail of unlikely tokens and some likely ones."""
    logits = rng.standard_normal(size) * 2 - 5
    logits[rng.integers(0, size, 50)] += 12
    return logits.astype(np.float32)


def masked(rng: np.random.Generator, size: int) -> t.Logits:
    """Return logits with the mask of a grammar."""
    logits = model_like(rng, size)
    logits[rng.random(size) < 0.9] = -np.inf
    return logits


SHAPES: dict[str, Callable[[np.random.Generator, int], t.Logits]] = {
    "model": model_like,
    "flat": lambda rng, size: (rng.standard_normal(size) * 0.01).astype(np.float32),
    "wide": lambda rng, size: (rng.standard_normal(size) * 40).astype(np.float32),
    "ties": lambda rng, size: rng.integers(-8, 8, size).astype(np.float32),
    # Different logits, many of which equal a neighbour after division by 0.8.
    "close": lambda rng, size: (1.75 + rng.permutation(size) * 2.0**-23).astype(np.float32),
    "equal": lambda rng, size: np.full(size, 3.0, np.float32),
    "masked": masked,
    "ascending": lambda rng, size: np.linspace(-10, 10, size, dtype=np.float32),
}

OPTIONS = [
    SamplingOptions(top_k=0),
    SamplingOptions(top_k=0, top_p=1.0),
    SamplingOptions(top_k=0, top_p=0.5, min_p=0.01),
    SamplingOptions(top_k=0, top_p=1.0, min_p=0.1, temperature=2.0),
    SamplingOptions(top_k=0, typical_p=0.7),
    SamplingOptions(top_k=3000, temperature=1.5, top_p=0.99),
    SamplingOptions(top_k=40),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_crowd_chooses_what_the_definition_chooses(shape: str) -> None:
    rng = np.random.default_rng(5)
    size = 20_011
    crowd = BucketSelection(size)
    for options in OPTIONS:
        for _ in range(4):
            logits = SHAPES[shape](rng, size)
            random = int(rng.integers(0, 2**24))
            assert crowd.choose(logits, options, random) == define(logits, options, random)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [1, 20, 40, 1000, 9000])
def test_candidates_of_a_large_vocabulary(shape: str, k: int) -> None:
    logits = SHAPES[shape](np.random.default_rng(k), 20_011)
    ids = candidates(logits, k)
    kept = t.top_k(ids, logits[ids], k)[0]
    assert kept.tolist() == t.top_k(np.arange(logits.size), logits, k)[0].tolist()


def test_candidates_are_few() -> None:
    logits = model_like(np.random.default_rng(6), 128_256)
    assert candidates(logits, 40).size < 100
