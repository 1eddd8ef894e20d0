"""The benchmark of speculation makes the given answer, with speculation and without."""

from __future__ import annotations

import numpy as np
import pytest

import chaski
from benchmarks.speculation import edited, measure


def test_an_edit_repeats_its_share() -> None:
    text = list(range(1000, 1400))
    shares = []
    for overlap in (0.0, 0.5, 0.9):
        answer = edited(text, 4000, overlap, np.random.default_rng(1), 1000)
        assert len(answer) == 4000
        shares.append(sum(token >= 1000 for token in answer) / 4000)
    assert shares == pytest.approx([0.0, 0.5, 0.9], abs=0.1)


def test_both_ways_make_the_answer() -> None:
    with chaski.load("guide", threads=1, context=256) as model:
        ((plain, speculative),) = measure(model, 0.9, 64, 48, 1)
    assert plain.rate > 0
    assert plain.accepted == 0
    assert 0 < speculative.accepted <= 1
