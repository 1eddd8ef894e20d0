"""The definitions against the reference's figures and explicit arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chaski.errors import SamplingError
from chaski.sample import SamplingOptions
from chaski.sample import transforms as t

ONE = 2**33


def floats(*values: float) -> t.Logits:
    return np.array(values, np.float32)


def shares(*values: float) -> tuple[t.TokenIds, t.TokenWeights]:
    """Return tokens 0, 1, ... with these probabilities in descending order."""
    return np.arange(len(values)), np.floor(np.array(values) * ONE)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, [2, 8, -4, 0]), (1, [1, 4, -2, 0]), (0, [1e7, 4e7, -2e7, 0]), (-1, [1e7, 4e7, -2e7, 0])],
)
def test_temperature_divides(value: float, expected: list[float]) -> None:
    np.testing.assert_allclose(t.temperature(floats(1, 4, -2, 0), value), expected, rtol=1e-6)


def test_softmax() -> None:
    weights = t.softmax(floats(1, -2, 3, 0))
    np.testing.assert_allclose(weights / weights.sum(), [0.113550, 0.005653, 0.839024, 0.041773], atol=1e-6)
    assert weights[2] == ONE


def test_weights_are_whole_and_vanish_far_below_the_top() -> None:
    weights = t.softmax(floats(0, -1, -22.8, -22.95, -math.inf))
    assert weights.tolist() == np.floor(weights).tolist()
    assert (weights > 0).tolist() == [True, True, True, False, False]


def test_sums_of_weights_do_not_depend_on_their_order() -> None:
    rng = np.random.default_rng(1)
    weights = t.softmax(rng.standard_normal(200_000).astype(np.float32))
    assert weights.sum() == rng.permutation(weights).cumsum()[-1] == math.fsum(weights)


@pytest.mark.parametrize("logits", [floats(math.nan, 0), floats(math.inf, 0), floats(-math.inf, -math.inf)])
def test_softmax_refuses_what_has_no_finite_top(logits: t.Logits) -> None:
    with pytest.raises(SamplingError, match="largest logit"):
        t.softmax(logits)


@pytest.mark.parametrize(
    ("k", "ids"),
    [(1, [1]), (2, [1, 3]), (3, [1, 3, 0]), (5, [1, 3, 0, 2, 4]), (9, [1, 3, 0, 2, 4]), (0, [1, 3, 0, 2, 4])],
)
def test_top_k_sorts_and_takes_the_lowest_ids_of_equal_tokens(k: int, ids: list[int]) -> None:
    kept, logits = t.top_k(np.arange(5), floats(1, 2, 0, 2, -math.inf), k)
    assert kept.tolist() == ids
    assert logits.tolist() == [[1, 2, 0, 2, -math.inf][token_id] for token_id in ids]


@pytest.mark.parametrize(
    ("p", "count"), [(0, 1), (-1, 1), (0.4, 1), (0.5, 2), (0.7, 2), (0.75, 3), (0.9, 4), (1, 4), (2, 4)]
)
def test_top_p_keeps_the_token_that_takes_the_sum_above_p(p: float, count: int) -> None:
    assert t.top_p(*shares(0.5, 0.25, 0.125, 0.125), p)[0].tolist() == list(range(count))


def test_top_p_just_below_one_does_not_lose_the_last_weight() -> None:
    ids, weights = shares(0.5, 0.5)
    assert t.top_p(ids, weights, math.nextafter(1, 0))[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("p", "count"), [(0, 4), (-1, 4), (0.25, 4), (0.26, 2), (0.5, 2), (0.51, 1), (1, 1), (2, 1)]
)
def test_min_p_is_relative_to_the_most_likely_token(p: float, count: int) -> None:
    assert t.min_p(*shares(0.5, 0.25, 0.125, 0.125), p)[0].tolist() == list(range(count))


def test_top_p_and_min_p_cut_what_the_reference_cuts() -> None:
    ids, logits = t.top_k(np.arange(7), floats(-3, -2, -1, 0, 1, 2, 4), 0)
    weights = t.softmax(logits)
    assert len(t.top_p(ids, weights, 0.95)[0]) <= 3
    assert len(t.min_p(ids, weights, 0.2)[0]) <= 3


def test_typical_p_keeps_the_tokens_nearest_to_the_mean_surprisal() -> None:
    # Surprisals 0.69, 1.39, 2.08 and 2.77 (twice) nats, mean 1.30: the order is 1, 0, 2, then 3 and 4.
    tokens = shares(0.5, 0.25, 0.125, 0.0625, 0.0625)
    kept = {p: t.typical_p(*tokens, p)[0].tolist() for p in (-1, 0, 0.2, 0.3, 0.75, 0.8, 0.9, 1, 2)}
    assert kept == {
        -1: [1],
        0: [1],
        0.2: [1],
        0.3: [0, 1],
        0.75: [0, 1, 2],
        0.8: [0, 1, 2],
        0.9: [0, 1, 2, 3],
        1: [0, 1, 2, 3, 4],
        2: [0, 1, 2, 3, 4],
    }


def test_surprisal_deviations() -> None:
    _, weights = shares(0.5, 0.25, 0.25)
    surprisals = -np.log([0.5, 0.25, 0.25])
    mean = 0.5 * surprisals[0] + 0.5 * surprisals[1]
    expected = np.abs(surprisals - mean)
    np.testing.assert_allclose(t.surprisal_deviations(weights), expected, atol=1e-8)


@pytest.mark.parametrize(
    ("random", "token_id"),
    [(0, 10), (1, 10), (2**23, 10), (2**23 + 1, 11), (3 * 2**22, 11), (3 * 2**22 + 1, 13), (2**24 - 1, 13)],
)
def test_draw_takes_the_first_token_whose_sum_reaches_the_random_share(random: int, token_id: int) -> None:
    ids = np.array([9, 10, 11, 12, 13, 14])
    weights = np.array([0, 0.5, 0.25, 0, 0.25, 0]) * ONE
    assert t.draw(ids, weights, random) == token_id


def test_draw_gives_every_token_its_share() -> None:
    logits = floats(0.3, -1, 1.2, 0, -math.inf)
    ids, logits_down = t.top_k(np.arange(5), logits, 0)
    weights = t.softmax(logits_down)
    numbers = np.arange(0, 2**24, 1024)
    drawn = np.bincount([t.draw(ids, weights, int(number)) for number in numbers], minlength=5)
    expected = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    np.testing.assert_allclose(drawn / numbers.size, expected, atol=1e-4)


def test_penalties_lower_recent_tokens_and_leave_the_logits() -> None:
    options = SamplingOptions(repeat_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    logits = floats(4, -4, 4, 0, -math.inf)
    logits.setflags(write=False)
    penalized = t.penalize(logits, np.array([0, 1, 3, 4]), np.array([1.0, 3, 2, 1]), options)
    assert penalized.tolist() == [2 - 0.75, -8 - 1.75, 4, -1.25, -math.inf]
    assert logits.tolist() == [4, -4, 4, 0, -math.inf]


def test_log_probabilities_are_those_of_all_logits() -> None:
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal(50_000) * 4).astype(np.float32)
    ids = np.argsort(-logits)[:20]
    exact = logits.astype(np.longdouble)
    exact -= exact.max()
    exact -= np.log(np.exp(exact).sum())
    np.testing.assert_allclose(t.log_probabilities(logits, ids), exact[ids].astype(float), atol=1e-6)


def test_choose_is_the_chain_in_order() -> None:
    # top_k leaves 0.5, 0.2 and 0.2; of their sum top_p takes 0.54, which is more than the first.
    logits = np.log(floats(0.2, 0.5, 0.1, 0.2))
    options = SamplingOptions(temperature=1.0, top_k=3, top_p=0.6)
    numbers = range(0, 2**24, 2**16)
    drawn = {t.choose(np.arange(4), logits, options, number) for number in numbers}
    assert drawn == {0, 1}
    cold = SamplingOptions(temperature=0.1, top_k=3, top_p=0.6)
    assert {t.choose(np.arange(4), logits, cold, number) for number in numbers} == {1}
