"""The guide's probabilities match its share of right answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chaski
from tools.guide.calibration import bins_of, error_of, stated, table
from tools.guide.topics import load_topics

GUIDE = Path(chaski.__file__).parent / "models/guide.gguf"


@pytest.mark.timed
@pytest.mark.long
def test_what_it_says_of_wordings_that_it_never_saw() -> None:
    """It uses all of them, since bins of a sample have few questions; the measured error was 2.4 %."""
    asked = [(text, topic.answer) for topic in load_topics() for text in topic.held_out]
    probabilities, right = stated(GUIDE, asked)
    bins = list(bins_of(probabilities, right))
    assert sum(each.count for each in bins) == len(asked)
    assert error_of(bins) < 0.04
    unsure, sure = right[probabilities < 0.5], right[probabilities >= 0.9]
    assert sure.mean() > 0.9
    assert unsure.mean() < 0.5


def test_the_error_is_the_distance_between_what_is_said_and_what_is_so() -> None:
    sure = np.array([0.95] * 8 + [1.0] * 2)
    bins = list(bins_of(sure, np.array([True] * 10)))
    assert [(each.begin, each.end, each.count) for each in bins] == [(0.9, 1.0, 10)]
    assert error_of(bins) == pytest.approx(0.04)
    wrong = list(bins_of(sure, np.array([False] * 10)))
    assert error_of(wrong) == pytest.approx(0.96)
    mixed = list(bins_of(np.array([0.25, 0.95, 0.95, 0.95]), np.array([False, True, True, True])))
    assert error_of(mixed) == pytest.approx((0.25 + 3 * 0.05) / 4)
    assert list(table(mixed))[2] == "| 20 % to 30 % | 1 | 25.0 % | 0.0 % |"
