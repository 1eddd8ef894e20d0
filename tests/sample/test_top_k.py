"""A sampler with the most likely tokens makes the same choice as with all logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski.errors import SamplingError
from chaski.sample import Sampled, Sampler, SamplingOptions
from chaski.sample import transforms as t
from chaski.sample.rules import TokenRules

MOST = 24

# Few distinct values for ties, and arbitrary ones, close and far.
logit = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.5, -3.0, 20.0, -math.inf]),
    st.floats(-30, 30, width=32),
    st.floats(-(2.0**100), 2.0**100, width=32),
)
rows = st.lists(logit, min_size=1, max_size=70).map(lambda values: np.array(values, np.float32))
share = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1 - 2.0**-53]), st.floats(0.0, 1.0))
options_strategy = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 1e-7, 0.5, 0.8, 1.0, 1.9, 50.0]),
    top_k=st.integers(-1, 30),
    top_p=share,
    min_p=share,
    typical_p=st.sampled_from([1.0, 1.0, 0.3, 0.9]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.1, 3.0, 0.5, 1e-300, 1e300]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, -0.5, 1e30]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.25, -1.0]),
    repeat_last_n=st.sampled_from([None, 0, 2, 64]),
    seed=st.integers(0, 100),
    logprobs=st.just(True),
    top_logprobs=st.sampled_from([0, 2]),
)


def sampled(sampler: Sampler, logits: t.Logits, top_logits: t.Logits | None) -> Sampled | str:
    try:
        return sampler.sample(logits, None, top_logits)
    except SamplingError as error:
        return str(error)


def found(logits: t.Logits, count: int) -> t.Logits:
    """Return a plan's top elements, followed by arbitrary values."""
    top_logits = np.full((2, count), np.nan, np.float32)
    ids = np.lexsort((np.arange(logits.size), -logits))[:count]
    if np.isnan(logits).any():
        ids = np.flatnonzero(np.isnan(logits))[:1]
    top_logits[:, : ids.size] = logits[ids], ids
    top_logits.setflags(write=False)
    return top_logits


@given(
    st.lists(rows, min_size=1, max_size=6),
    options_strategy,
    st.lists(st.integers(0, 69), max_size=12),
    st.builds(
        TokenRules,
        suppressed=st.frozensets(st.integers(0, 69), max_size=4),
        never=st.frozensets(st.integers(0, 69), max_size=4),
        end_ids=st.frozensets(st.integers(0, 69), max_size=3),
        min_tokens=st.integers(0, 4),
    ),
)
def test_knowing_the_most_likely_tokens_changes_nothing(
    steps: list[t.Logits], options: SamplingOptions, history: list[int], rules: TokenRules
) -> None:
    told, alone = Sampler(options, rules), Sampler(options, rules)
    size = min(map(len, steps))
    for sampler in (told, alone):
        sampler.begin(token for token in history if token < size)
    for step in steps:
        logits = step[:size].copy()
        logits.setflags(write=False)
        answers = [
            sampled(told, logits, found(logits, told.num_top_logits(MOST))),
            sampled(alone, logits, None),
        ]
        assert answers[0] == answers[1]
        if isinstance(answers[0], str):
            return
        for sampler in (told, alone):
            sampler.accept(answers[0].token_id)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"temperature": 0}, 1),
        ({}, 40),
        ({"top_k": 0}, 0),
        ({"top_k": 129}, 0),
        ({"temperature": 0, "top_k": 129}, 1),
        ({"temperature": 0, "repeat_penalty": 1.1}, 4),
        ({"repeat_penalty": 1.1}, 43),
        ({"top_k": 127, "presence_penalty": 1.0}, 128),
        ({"presence_penalty": -1.0}, 0),
    ],
)
def test_it_asks_for_what_it_needs(options: dict[str, float], count: int) -> None:
    sampler = Sampler(SamplingOptions(**options))
    sampler.begin([5, 6, 7, 7])
    assert sampler.num_top_logits(128) == count


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_cannot_be_chosen_is_said_as_before(value: float) -> None:
    logits = np.array([0, 1, value, 2], np.float32)
    sampler = Sampler(SamplingOptions())
    with pytest.raises(SamplingError, match="logit 2 is"):
        sampler.sample(logits, None, found(logits, 4))


def test_all_logits_are_read_where_penalties_leave_too_few() -> None:
    """The request is older than its last accepted tokens, as with proposals; those are penalized."""
    logits = np.arange(50, dtype=np.float32)
    sampler = Sampler(SamplingOptions(temperature=0, presence_penalty=100.0))
    top_logits = found(logits, sampler.num_top_logits(MOST))
    sampler.begin([49, 48])
    assert sampler.sample(logits, None, top_logits).token_id == 47


def test_ends_are_asked_for_besides_while_they_are_too_early() -> None:
    rules = TokenRules(never=frozenset([1]), end_ids=frozenset([1, 3]), min_tokens=1)
    sampler = Sampler(SamplingOptions(temperature=0), rules)
    logits = np.array([1, 9, 2, 8, 0], np.float32)
    assert sampler.num_top_logits(MOST) == 3
    assert sampler.sample(logits, None, found(logits, 3)).token_id == 2
    sampler.accept(2)
    assert sampler.num_top_logits(MOST) == 2
    assert sampler.sample(logits, None, found(logits, 2)).token_id == 3
    only_ends = np.array([-np.inf, 9, -np.inf, -np.inf, -np.inf], np.float32)
    assert sampler.sample(only_ends, None, found(only_ends, 2)).token_id == 1


def test_suppressed_tokens_are_asked_for_besides_and_never_chosen() -> None:
    rules = TokenRules(suppressed=frozenset([1, 3, 100]))
    sampler = Sampler(SamplingOptions(temperature=0), rules)
    logits = np.array([1, 9, 2, 8, 0], np.float32)
    assert sampler.num_top_logits(MOST) == 4
    assert sampler.num_top_logits(3) == 0, "all three may be suppressed"
    assert sampler.sample(logits).token_id == 2
    assert sampler.sample(logits, None, found(logits, 4)).token_id == 2
    alone = Sampler(SamplingOptions(logit_bias={1: 100.0}), rules)
    assert all(alone.sample(logits).token_id not in rules.suppressed for _ in range(50))
