from __future__ import annotations

import math

import pytest

from chaski.durations import parse_duration
from chaski.errors import OptionError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("100ms", 0.1),
        (".5m", 30),
        ("300", 300),
        (10, 10),
        (2.5, 2.5),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        ("-1", math.inf),
        (-1, math.inf),
        ("-1m", math.inf),
        ("+2s", 2),
        ("42µs", 42e-6),
    ],
)
def test_durations(value: object, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "soon", "5x", "m", "1h-3m", "-", "1 m", True, [], None])
def test_what_is_none(value: object) -> None:
    with pytest.raises(OptionError):
        parse_duration(value)
