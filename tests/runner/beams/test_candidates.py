"""The choices of a beam search, as plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chaski.chat.beams import BeamOptions
from chaski.runner.beams.candidates import RankedAnswers, best_candidates
from chaski.sample import Sampled


def test_equally_likely_candidates_are_in_the_order_of_beams_and_ids() -> None:
    beams = [(-1.0, np.array([-2.0, -1.0, -1.0, -np.inf])), (0.0, np.array([-2.0, -3.0, -2.0, -9.0]))]
    found = best_candidates(beams, 5)
    assert [(each.beam, each.token) for each in found] == [(0, 1), (0, 2), (1, 0), (1, 2), (0, 0)]
    assert [each.cost for each in found] == [2, 2, 2, 2, 3]
    assert [each.logprob for each in found] == [-1, -1, -2, -2, -2]


def test_a_candidate_that_is_ruled_out_is_none() -> None:
    assert [each.token for each in best_candidates([(0.0, np.array([-np.inf, -1.0, -np.inf]))], 4)] == [1]


def answer(length: int) -> tuple[Sampled, ...]:
    return tuple(Sampled(token) for token in range(length))


def test_the_best_answers_are_kept_in_their_order() -> None:
    ranked = RankedAnswers(BeamOptions(num_beams=2, length_penalty=1.0), 8)
    ranked.add([(-4.0, answer(2), False), (-9.0, answer(3), True)])
    ranked.add([(-2.0, answer(4), False), (-8.0, answer(4), False)])
    assert [each.score for each in ranked.found] == [-0.5, -2.0]
    assert [(len(each.answer), each.is_cut) for each in ranked.found] == [(4, False), (2, False)]


@pytest.mark.parametrize(
    ("options", "logprob", "is_final"),
    [
        ({"early_stopping": True}, -0.1, True),
        ({}, -4.0, True),  # -4 / 2 is as good as -2
        ({}, -3.9, False),
        ({"early_stopping": "never"}, -4.0, False),  # -4 / 8 would be better
        ({"early_stopping": "never"}, -16.0, True),
        ({"early_stopping": "never", "length_penalty": -1.0}, -0.5, False),
        ({"early_stopping": "never", "length_penalty": -1.0}, -16.0, True),  # longer is worse
    ],
)
def test_when_open_answers_can_be_ignored(options: dict[str, Any], logprob: float, is_final: bool) -> None:
    ranked = RankedAnswers(BeamOptions(num_beams=2, **options), 8)
    assert not ranked.is_final(-100.0, 2), "as long as there are fewer answers than beams"
    ranked.add([(-2.0, answer(1), False), (-1.0, answer(1), False)])
    assert ranked.is_final(logprob, 2) == is_final
