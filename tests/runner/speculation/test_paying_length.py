from __future__ import annotations

import numpy as np
import pytest

from chaski.model.proposing import ProposingCost
from chaski.runner.speculation.speculator import PayingLength


def made(right: float, cost: float, tokens: int, seed: int = 0, proposal: float = 0.0) -> tuple[float, int]:
    """Return the time for tokens with a given acceptance probability, and the number of proposals."""
    random = np.random.default_rng(seed)
    length = PayingLength(15 if proposal else 7, ProposingCost(cost, proposal))
    made = proposed = 0
    time = 0.0
    while made < tokens:
        count = length.current(made)
        accepted = next((index for index in range(count) if random.random() >= right), count)
        made += accepted + 1
        time += 1 + (proposal if count else 0) + count * (cost + 0.1)
        proposed += count
        if count:
            length.record_acceptance(count, accepted, made)
    return time / made, proposed


@pytest.mark.parametrize("cost", [0.05, 0.25])
def test_proposals_that_are_never_right_cost_hardly_anything(cost: float) -> None:
    assert made(0, cost, 160)[0] < 1 / 0.98
    assert made(0, cost, 1000)[0] < 1 / 0.995


@pytest.mark.parametrize(("right", "cost", "sooner"), [(0.7, 0.08, 1.5), (0.9, 0.08, 2.2), (0.7, 0.2, 1.3)])
def test_right_proposals_pay(right: float, cost: float, sooner: float) -> None:
    assert np.mean([made(right, cost, 400, seed)[0] for seed in range(5)]) < 1 / sooner


def test_more_is_proposed_where_more_is_right() -> None:
    assert made(0.9, 0.1, 400)[1] > made(0.6, 0.1, 400)[1] > 20 * made(0, 0.1, 400)[1] > 0


def test_what_costs_more_than_it_brings_is_not_proposed() -> None:
    length = PayingLength(7, ProposingCost(1.0))
    length.record_acceptance(1, 1, 10)
    assert length.current(11) == 0


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_blocks_that_are_never_right_cost_hardly_anything(share: float) -> None:
    assert made(0, 0.1 * share, 160, proposal=share)[0] < 1 / 0.98


@pytest.mark.parametrize(("right", "share", "sooner"), [(0.7, 0.1, 1.5), (0.9, 0.2, 2.5), (0.9, 0.6, 1.8)])
def test_right_blocks_pay(right: float, share: float, sooner: float) -> None:
    times = [made(right, 0.1 * share, 400, seed, proposal=share)[0] for seed in range(5)]
    assert np.mean(times) < 1 / sooner


def test_a_block_is_long_or_there_is_none() -> None:
    """Its price is paid once, so one token may not pay off when several do."""
    length = PayingLength(15, ProposingCost(0.05, 1.0))
    for count in range(8):
        length.record_acceptance(8, 8, 10 * count)
    assert length.current(100) > 8
    for count in range(20):
        length.record_acceptance(8, 1, 100 + count)
    assert length.current(120) == 0
