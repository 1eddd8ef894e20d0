"""Options of vLLM and llama.cpp, against their definitions written out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski.sample import SamplingOptions
from chaski.sample.dry import Repetitions, suffix_lengths
from chaski.sample.rules import TokenRules
from tests.sample.letters import greedy, logits_of, spell


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


def dry_by_hand(history: Sequence[int], options: SamplingOptions, breakers: set[int]) -> dict[int, float]:
    """Compute llama.cpp's rule in one loop over all pairs of positions, for breakers of one token each."""
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
    """`abcd … abc`: d would continue a repetition of three, one more than allowed."""
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
