"""Options of vLLM and llama.cpp, against their definitions written out by hand."""

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
from chaski.sample.dry import Repetitions, suffix_lengths
from chaski.sample.pcg import Pcg
from chaski.sample.rules import TokenRules, forbidden

LETTERS = "abcdefghijklmnopqrstuvwxyz\n"


def spell(token_id: int) -> bytes:
    return LETTERS[token_id % len(LETTERS)].encode()


def logits_of(seed: int, size: int = len(LETTERS)) -> t.Logits:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def greedy(rules: TokenRules | None = None, **options: Any) -> Sampler:
    return Sampler(SamplingOptions(temperature=0, **options), rules)


# ---- repetition_penalty ----


@given(st.integers(0, 99), st.lists(st.integers(0, 26), max_size=20), st.sampled_from([0.5, 1.2, 3.0]))
def test_the_repetition_penalty_is_of_prompt_and_answer(
    seed: int, history: list[int], penalty: float
) -> None:
    logits = logits_of(seed)
    sampler = greedy(repetition_penalty=penalty)
    sampler.begin(history[:10])
    for token in history[10:]:
        sampler.accept(token)
    expected = logits.astype(np.float64)
    for token in set(history):
        expected[token] = expected[token] / penalty if expected[token] > 0 else expected[token] * penalty
    assert sampler.sample(logits).token_id == int(expected.astype(np.float32).argmax())


def test_it_reaches_further_than_repeat_last_n() -> None:
    logits = np.array([3, 2, 0], np.float32)
    near, far = greedy(repeat_penalty=2.0, repeat_last_n=1), greedy(repetition_penalty=2.0, repeat_last_n=1)
    for sampler in (near, far):
        sampler.begin([0, 2, 2])
    assert (near.sample(logits).token_id, far.sample(logits).token_id) == (0, 1)
    both = greedy(repetition_penalty=1.2, repeat_penalty=1.3)
    both.begin([0])
    assert both.sample(logits).token_id == 1, "3 / 1.2 / 1.3 is below 2"


# ---- DRY ----


def dry_by_hand(history: Sequence[int], options: SamplingOptions, breakers: set[int]) -> dict[int, float]:
    """llama.cpp's rule in one loop over all pairs of positions, for breakers of one token each."""
    window = len(history) if options.dry_penalty_last_n is None else options.dry_penalty_last_n
    recent = list(history[len(history) - min(window, len(history)) :])
    limit = next((n for n, token in enumerate(reversed(recent)) if token in breakers), len(recent))
    found: dict[int, int] = {}
    for end in range(len(recent) - 1):
        length = 0
        while length <= end and length < limit and recent[end - length] == recent[-1 - length]:
            length += 1
        token = recent[end + 1]
        is_long = length >= options.dry_allowed_length and limit >= options.dry_allowed_length
        if is_long and token not in breakers:
            found[token] = max(found.get(token, 0), length)
    return {
        token: options.dry_multiplier * options.dry_base ** (length - options.dry_allowed_length)
        for token, length in found.items()
    }


@given(
    st.lists(st.sampled_from([0, 1, 2, 26]), max_size=40),
    st.integers(0, 40),
    st.builds(
        SamplingOptions,
        dry_multiplier=st.just(0.8),
        dry_base=st.sampled_from([1.0, 1.75]),
        dry_allowed_length=st.integers(0, 4),
        dry_penalty_last_n=st.sampled_from([None, 1, 5, 20]),
    ),
    st.sampled_from([(), (b"\n",)]),
)
def test_dry_is_the_rule_of_llama_cpp(
    history: list[int], cut: int, options: SamplingOptions, breakers: tuple[bytes, ...]
) -> None:
    found = Repetitions(options, TokenRules(breakers=breakers, spell=spell))
    found.begin(history[:cut])
    for token in history[cut:]:
        found.accept(token)
    ids, amounts = found.penalties()
    expected = dry_by_hand(history, options, {26} if breakers else set())
    assert dict(zip(ids.tolist(), amounts.tolist(), strict=True)) == pytest.approx(expected)


def test_dry_on_an_example() -> None:
    """`abcd … abc`: d would go on with a repetition of three, which is one above what is free."""
    sampler = greedy(TokenRules(spell=spell), dry_multiplier=2.0, dry_allowed_length=2)
    sampler.begin([0, 1, 2, 3, 9, 0, 1, 2])
    logits = np.zeros(27, np.float32)
    logits[3], logits[4] = 5, 5 - 2 * 1.75 + 0.01
    assert sampler.sample(logits).token_id == 4
    sampler.accept(4)
    assert sampler.sample(logits).token_id == 3, "nothing is repeated any more"


def test_breakers_may_reach_over_tokens_and_lie_far_back() -> None:
    options = SamplingOptions(dry_multiplier=1.0, dry_allowed_length=1)
    rules = TokenRules(breakers=(b"bc",), spell=spell)
    found = Repetitions(options, rules)
    found.begin([0, 1, 2, 4, 5, 0, 1, 2])
    assert found.penalties()[0].tolist() == [], "the last two tokens are a breaker"
    found.accept(4)
    assert found.penalties()[0].tolist() == [5]
    found.begin([1, 2] + [7, 8] * 400)
    ids, amounts = found.penalties()
    assert ids.tolist() == [7]
    assert np.isfinite(amounts).all()


@given(st.lists(st.integers(0, 2), max_size=30))
def test_suffix_lengths(tokens: list[int]) -> None:
    def length(end: int) -> int:
        return max(n for n in range(end + 2) if tokens[end + 1 - n : end + 1] == tokens[len(tokens) - n :])

    expected = [length(end) for end in range(len(tokens))]
    assert suffix_lengths(tokens)[:-1] == expected[:-1]


def test_a_long_prompt_that_repeats_itself_takes_no_time() -> None:
    found = Repetitions(SamplingOptions(dry_multiplier=1.0), TokenRules(breakers=(b"\n",), spell=spell))
    found.begin([0] * 50_000)
    found.accept(0)
    ids, amounts = found.penalties()
    assert ids.tolist() == [0]
    assert np.isfinite(amounts).all()


# ---- top_n_sigma ----


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


# ---- XTC ----


def xtc_by_hand(probabilities: Sequence[float], threshold: float) -> list[int]:
    """Which of the tokens, most likely first, stay."""
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
    """One draw says whether, the next one which token."""
    logits = np.array([2, 1.5, -30], np.float32)
    options = SamplingOptions(xtc_probability=0.25, xtc_threshold=0.2, top_p=1, temperature=1, seed=4)
    sampler, random = Sampler(options), Pcg.from_seed(4)
    for _ in range(300):
        excludes = random.next_24() < 0.25 * 2**24
        is_second = random.next_24() / 2**24 > 1 / (1 + math.exp(-0.5))
        assert sampler.sample(logits).token_id == int(excludes or is_second)
    assert greedy(xtc_probability=1.0).sample(logits).token_id == 0


# ---- ends and bad words ----


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
    """A grammar whose answer is complete leaves nothing else."""
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


# ---- whatever is known beforehand ----

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
