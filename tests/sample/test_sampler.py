from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from chaski.errors import SamplingError
from chaski.sample import Sampled, Sampler, SamplingOptions
from chaski.sample import transforms as t
from chaski.sample.pcg import Pcg


def floats(*values: float) -> t.Logits:
    logits = np.array(values, np.float32)
    logits.setflags(write=False)
    return logits


def sample_many(options: SamplingOptions, logits: t.Logits, count: int) -> list[int]:
    sampler = Sampler(options)
    return [sampler.sample(logits).token_id for _ in range(count)]


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert Sampler(SamplingOptions(temperature=0)).sample(floats(-10, 3, -10, 3)) == Sampled(1)


def test_a_bias_is_added_before_all_else() -> None:
    logits = floats(1, 2, 3)
    greedy = Sampler(SamplingOptions(temperature=0, logit_bias={2: -100, 0: 0.5}, logprobs=True))
    chosen = greedy.sample(logits)
    assert chosen.token_id == 1
    # The reported probabilities are the model's own.
    assert chosen.logprob == pytest.approx(2 - math.log(sum(map(math.exp, (1, 2, 3)))))
    assert set(sample_many(SamplingOptions(temperature=5, logit_bias={0: 100}), logits, 20)) == {0}
    assert 2 not in sample_many(SamplingOptions(temperature=5, logit_bias={2: -100}), logits, 50)
    both = Sampler(SamplingOptions(temperature=0, logit_bias={0: 3}, presence_penalty=2.5))
    assert both.sample(logits).token_id == 0
    both.accept(0)
    assert both.sample(logits).token_id == 2


def test_greedy_looks_at_penalties_only() -> None:
    options = SamplingOptions(temperature=0, presence_penalty=2.0, top_k=1, min_p=1.0)
    sampler = Sampler(options)
    logits = floats(0.5, 3, 2)
    tokens = []
    for _ in range(4):
        tokens.append(sampler.sample(logits).token_id)
        sampler.accept(tokens[-1])
    assert tokens == [1, 2, 1, 1]


def test_a_seed_repeats_and_seeds_differ() -> None:
    logits = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    first, again, other = (
        sample_many(SamplingOptions(seed=seed, top_k=0, temperature=2.0), logits, 50) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_without_a_seed_a_fresh_one_is_taken_and_told() -> None:
    logits = np.zeros(1000, np.float32)
    options = SamplingOptions(top_k=0)
    fresh = Sampler(options)
    tokens = [fresh.sample(logits).token_id for _ in range(8)]
    assert fresh.seed != Sampler(options).seed
    assert sample_many(SamplingOptions(top_k=0, seed=fresh.seed), logits, 8) == tokens


def test_the_reference_draws_the_first_token_here() -> None:
    options = SamplingOptions(temperature=1.0, top_p=1e-10, seed=0)
    assert Sampler(options).sample(floats(1.0, 0.9999, 0.5, 0.1)).token_id == 0


def test_shares_are_those_of_the_softmax() -> None:
    logits = floats(0.5, -0.5, 1.0, -math.inf)
    options = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, seed=3)
    drawn = np.bincount(sample_many(options, logits, 4000), minlength=4) / 4000
    expected = np.exp(logits) / np.exp(logits).sum()
    # Three standard deviations are at most 0.024.
    np.testing.assert_allclose(drawn, expected, atol=0.024)
    assert drawn[3] == 0


@pytest.mark.parametrize("top_k", [0, 1, 40, 1024, 1025, 5000, 10**6])
@pytest.mark.parametrize("penalties", [{}, {"repeat_penalty": 1.3, "frequency_penalty": 0.2}])
def test_every_path_gives_the_token_of_the_definition(top_k: int, penalties: dict[str, Any]) -> None:
    rng = np.random.default_rng(top_k)
    options = SamplingOptions(top_k=top_k, temperature=1.2, seed=9, **penalties)
    sampler, random = Sampler(options), Pcg.from_seed(9)
    history: list[int] = []
    for _ in range(20):
        logits = (rng.standard_normal(6000) * 3).astype(np.float32)
        ids, counts = np.unique(np.array(history[-64:], np.int64), return_counts=True)
        penalized = t.penalize(logits, ids, counts.astype(np.float64), options) if penalties else logits
        expected = t.choose(np.arange(6000), penalized, options, random.next_24())
        token_id = sampler.sample(logits).token_id
        assert token_id == expected
        sampler.accept(token_id)
        history.append(token_id)


@pytest.mark.parametrize(
    ("window", "penalized"),
    [(0, []), (1, [3]), (2, [1, 3]), (3, [1, 3]), (4, [1, 2, 3]), (None, [0, 1, 2, 3])],
)
def test_penalties_look_at_the_latest_tokens(window: int | None, penalized: list[int]) -> None:
    options = SamplingOptions(temperature=0, presence_penalty=1.0, repeat_last_n=window)
    for token_id in range(5):
        # Token 4 never occurred, so it wins unless this token has its full logit.
        sampler = Sampler(options)
        sampler.begin([0, 0, 2, 1, 1, 3])
        logits = floats(*(1.0 if other == token_id else 0.5 for other in range(4)), 0.75)
        expected = 4 if token_id in (*penalized, 4) else token_id
        assert sampler.sample(logits).token_id == expected


def test_frequency_counts_fall_when_tokens_leave_the_window() -> None:
    sampler = Sampler(SamplingOptions(temperature=0, frequency_penalty=1.0, repeat_last_n=2))
    sampler.begin([0, 0])
    assert sampler.sample(floats(1.5, 0)).token_id == 1
    sampler.accept(1)
    # One 0 and one 1 remain in the window.
    assert sampler.sample(floats(1.5, 0)).token_id == 0


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 2}, {"top_k": 0}, {"repeat_penalty": 2.0}])
@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([], "there are 0 logits"),
        ([0, math.nan, 1, 2], "logit 1 is nan"),
        ([math.nan] * 3, "logit 0 is nan"),
        ([0, 1, math.inf], "logit 2 is inf"),
        ([-math.inf] * 3, "logit 0 is -inf"),
    ],
)
def test_logits_without_a_meaning_are_refused(
    options: dict[str, Any], logits: list[float], message: str
) -> None:
    sampler = Sampler(SamplingOptions(**options))
    sampler.begin([0, 1, 2] if len(logits) > 2 else [])
    with pytest.raises(SamplingError, match=message):
        sampler.sample(floats(*logits))


def test_a_vocabulary_too_large_for_exact_sums_is_refused() -> None:
    with pytest.raises(SamplingError, match="there are 1048577 logits"):
        Sampler(SamplingOptions()).sample(np.zeros(2**20 + 1, np.float32))


@pytest.mark.parametrize("top_k", [0, 2])
def test_extreme_options_do_not_warn(top_k: int) -> None:
    logits = floats(1e38, 0, -1e38, -math.inf)
    hot = Sampler(SamplingOptions(temperature=1e300, top_k=top_k))
    assert hot.sample(logits).token_id in (0, 1, 2)
    cold = Sampler(SamplingOptions(temperature=1e-30, top_k=top_k))
    assert cold.sample(floats(40, 39.99, -40)).token_id == 0
    with pytest.raises(SamplingError, match="use a higher temperature"):
        cold.sample(logits)
    harsh = Sampler(SamplingOptions(repeat_penalty=1e-300, top_k=top_k))
    harsh.accept(0)
    with pytest.raises(SamplingError, match="logit 0 is inf"):
        harsh.sample(logits)


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = floats(2, 5, 1, 4, 3)
    options = SamplingOptions(
        temperature=0.1, top_k=1, presence_penalty=9.0, logprobs=True, top_logprobs=5, seed=0
    )
    sampler = Sampler(options)
    sampler.accept(1)
    sampled = sampler.sample(logits)
    expected = logits.astype(float) - math.log(sum(math.exp(value) for value in logits))
    assert sampled.token_id == 3
    assert sampled.logprob == pytest.approx(expected[3], abs=1e-6)
    assert sampled.top_logprobs is not None
    assert [top.token_id for top in sampled.top_logprobs] == [1, 3, 4, 0, 2]
    assert [top.logprob for top in sampled.top_logprobs] == pytest.approx(sorted(expected)[::-1], abs=1e-6)


def test_top_logprobs_of_a_large_vocabulary() -> None:
    logits = np.random.default_rng(4).standard_normal(30_000).astype(np.float32)
    options = SamplingOptions(logprobs=True, top_logprobs=20)
    sampled = Sampler(options).sample(logits)
    assert sampled.top_logprobs is not None
    assert [top.token_id for top in sampled.top_logprobs] == np.argsort(-logits)[:20].tolist()
    assert all(a.logprob >= b.logprob for a, b in pairwise(sampled.top_logprobs))


def test_logprobs_come_only_when_asked_for() -> None:
    logits = floats(0, 1)
    assert Sampler(SamplingOptions(temperature=0)).sample(logits) == Sampled(1, None, None)
    only_chosen = Sampler(SamplingOptions(temperature=0, logprobs=True)).sample(logits)
    assert only_chosen.logprob == pytest.approx(-math.log(1 + math.exp(-1)))
    assert only_chosen.top_logprobs is None
    # More than the number of tokens means all of them.
    more = Sampler(SamplingOptions(logprobs=True, top_logprobs=20)).sample(logits)
    assert more.top_logprobs is not None
    assert [top.token_id for top in more.top_logprobs] == [1, 0]


def test_logprobs_do_not_change_the_tokens() -> None:
    logits = np.random.default_rng(8).standard_normal(2000).astype(np.float32)
    plain = sample_many(SamplingOptions(seed=5), logits, 20)
    assert sample_many(SamplingOptions(seed=5, logprobs=True, top_logprobs=3), logits, 20) == plain
