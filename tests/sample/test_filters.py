"""Options that remove tokens by logits (top_n_sigma, XTC) or by rules, and invalid values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski.errors import SamplingError
from chaski.sample import Sampled, Sampler, SamplingOptions
from chaski.sample import transforms as t
from chaski.sample.bucket_selection import BucketSelection
from chaski.sample.pcg import Pcg
from chaski.sample.rules import TokenRules, forbidden
from tests.sample.letters import greedy, logits_of, spell


@given(st.integers(0, 99), st.sampled_from([0.5, 1.0, 2.0]))
def test_top_n_sigma(seed: int, n: float) -> None:
    logits = logits_of(seed, 300)
    logits[::7] = -np.inf
    finite = [float(x) for x in logits if math.isfinite(x)]
    mean = sum(finite) / len(finite)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in finite) / len(finite))
    found = np.isfinite(t.top_n_sigma(logits, n))
    bound = max(finite) - n * deviation
    away = np.abs(logits - bound) > 1e-5
    assert (found == (logits >= bound))[away].all()


def test_top_n_sigma_narrows_draws_and_hides_no_fault() -> None:
    logits = np.array([4, 3.9, 0, 0, 0, 0, 0, -1], np.float32)
    options = SamplingOptions(top_n_sigma=1.0, temperature=50, top_k=0, top_p=1, seed=1)
    sampler = Sampler(options)
    assert {sampler.sample(logits).token_id for _ in range(60)} == {0, 1}
    assert t.top_n_sigma(logits, 0) is logits
    logits[3] = np.nan
    with pytest.raises(SamplingError, match="logit 3 is nan"):
        Sampler(options).sample(logits)


def xtc_by_hand(probabilities: Sequence[float], threshold: float) -> list[int]:
    """Return which of the tokens, most likely first, stay."""
    above = [place for place, share in enumerate(probabilities) if share >= threshold]
    return [place for place in range(len(probabilities)) if place not in above[:-1]]


@given(st.integers(0, 99), st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5, 0.6, 1.0]))
def test_xtc_excludes_the_top_choices(seed: int, threshold: float) -> None:
    ids, logits = t.top_k(np.arange(27), logits_of(seed), 12)
    weights = t.softmax(logits)
    kept = xtc_by_hand((weights / weights.sum()).tolist(), threshold)
    assert t.exclude_top(ids, weights, threshold)[0].tolist() == ids[kept].tolist()


@given(
    st.integers(0, 50),
    st.integers(0, 2**24 - 1),
    st.builds(
        SamplingOptions,
        top_k=st.sampled_from([0, 3, 20]),
        top_p=st.sampled_from([1.0, 0.8]),
        min_p=st.sampled_from([0.0, 0.05]),
        typical_p=st.sampled_from([1.0, 0.5]),
        xtc_threshold=st.sampled_from([0.0, 0.05, 0.2]),
    ),
    st.booleans(),
)
def test_a_crowd_excludes_the_same(seed: int, random: int, options: SamplingOptions, has_ties: bool) -> None:
    logits = logits_of(seed, 200)
    logits = np.round(logits) if has_ties else logits
    ids = np.arange(logits.size)
    expected = t.choose(ids, logits, options, random, True)
    assert BucketSelection(logits.size).choose(logits, options, random, True) == expected


def test_xtc_happens_as_often_as_it_should() -> None:
    """One draw decides whether XTC applies, the next one chooses the token."""
    logits = np.array([2, 1.5, -30], np.float32)
    options = SamplingOptions(xtc_probability=0.25, xtc_threshold=0.2, top_p=1, temperature=1, seed=4)
    sampler, random = Sampler(options), Pcg.from_seed(4)
    for _ in range(300):
        excludes = random.next_24() < 0.25 * 2**24
        is_second = random.next_24() / 2**24 > 1 / (1 + math.exp(-0.5))
        assert sampler.sample(logits).token_id == int(excludes or is_second)
    assert greedy(xtc_probability=1.0).sample(logits).token_id == 0


def test_ends_do_not_come_too_early() -> None:
    logits = np.array([1, 5, 3], np.float32)
    sampler = greedy(TokenRules(end_ids=frozenset([1]), min_tokens=2))
    tokens = []
    for _ in range(3):
        tokens.append(sampler.sample(logits).token_id)
        sampler.accept(tokens[-1])
    assert tokens == [2, 2, 1]
    assert greedy(TokenRules(never=frozenset([1, 2]))).sample(logits).token_id == 0


def test_what_must_end_ends() -> None:
    """A grammar with a complete answer allows only the end."""
    logits = np.array([1, 5, 3], np.float32)
    sampler = greedy(TokenRules(never=frozenset([1])))
    assert sampler.sample(logits, np.array([False, True, False])).token_id == 1
    assert sampler.sample(logits, np.array([True, True, False])).token_id == 0


def test_bad_words_are_never_completed() -> None:
    assert forbidden([(1,), (2, 3), (4, 5, 6)], [9, 4, 5]) == [1, 6]
    assert forbidden([(2, 3)], [2]) == [3]
    assert forbidden([(2, 3), (4, 5, 6)], []) == []
    logits = np.array([0, 3, 2], np.float32)
    sampler = greedy(TokenRules(bad_words=((1, 1), (2, 2))))
    sampler.begin([1, 1])
    tokens = []
    for _ in range(5):
        tokens.append(sampler.sample(logits).token_id)
        sampler.accept(tokens[-1])
    assert tokens == [1, 2, 1, 2, 1], "what the prompt ends with does not count"
    with pytest.raises(SamplingError, match="bad_words and the format leave none"):
        greedy(TokenRules(bad_words=((1,),))).sample(logits, np.array([False, True, False]))


every = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.8, 2.0]),
    top_k=st.sampled_from([0, 3, 10]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    repeat_penalty=st.sampled_from([1.0, 1.2]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 1.5]),
    top_n_sigma=st.sampled_from([-1.0, -1.0, 1.5]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.05, 0.3]),
    seed=st.integers(0, 100),
)


rules_strategy = st.builds(
    TokenRules,
    never=st.sampled_from([frozenset[int](), frozenset([3])]),
    end_ids=st.just(frozenset([5])),
    min_tokens=st.sampled_from([0, 0, 3]),
    bad_words=st.sampled_from([(), ((1,), (2, 4))]),
    breakers=st.just((b"\n",)),
    spell=st.just(spell),
)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=8), every, rules_strategy)
def test_knowing_the_most_likely_tokens_changes_nothing(
    seeds: list[int], options: SamplingOptions, rules: TokenRules
) -> None:
    told, alone = Sampler(options, rules), Sampler(options, rules)
    for sampler in (told, alone):
        sampler.begin([1, 2, 3, 1, 2])
    for seed in seeds:
        logits = np.round(logits_of(seed)) if seed % 2 else logits_of(seed)
        count = told.num_top_logits(24)
        ids = np.lexsort((np.arange(logits.size), -logits))[:count]
        top_logits = np.array([logits[ids], ids], np.float32)
        answers: list[Sampled] = [told.sample(logits, None, top_logits), alone.sample(logits)]
        assert answers[0] == answers[1]
        for sampler in (told, alone):
            sampler.accept(answers[0].token_id)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("repetition_penalty", [0, -1, math.nan, "1", True]),
        ("dry_multiplier", [-0.1, math.inf, None]),
        ("dry_base", [0.9, math.nan]),
        ("dry_allowed_length", [-1, 1.5, None]),
        ("dry_penalty_last_n", [-1, 2.5]),
        ("top_n_sigma", [math.nan, "2"]),
        ("xtc_probability", [-0.1, 1.1, None]),
        ("xtc_threshold", [-0.1, 1.1]),
    ],
)
def test_values_that_are_none(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(SamplingError, match=f"option {name} is"):
            SamplingOptions(**{name: value})
