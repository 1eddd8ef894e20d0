from __future__ import annotations

from copy import copy

import pytest

from chaski.sample.pcg import Pcg

# The numbers of rand.NewPCG(1, 2) in Go 1.22 and later.
GO_VALUES = [
    0xC4F5A58656EEF510,
    0x9DCEC3AD077DEC6C,
    0xC8D04605312F8088,
    0xCBEDC0DCB63AC19A,
    0x3BF98798CAE97950,
    0x0A8C6D7F8D485ABC,
    0x7FFA3780429CD279,
    0x730AD2626B1C2F8E,
]


def test_the_numbers_are_those_of_go() -> None:
    pcg = Pcg(1, 2)
    assert [pcg.next_64() for _ in GO_VALUES] == GO_VALUES


@pytest.mark.parametrize(
    ("seed", "values"),
    [(0, [0.15466583, 0.94438946, 0.08470482]), (42, [0.59130484, 0.79153419, 0.20031160])],
)
def test_a_seed_gives_the_floats_of_the_reference(seed: int, values: list[float]) -> None:
    pcg = Pcg.from_seed(seed)
    assert [pcg.next_24() / 2**24 for _ in values] == pytest.approx(values, abs=1e-8)


def test_the_largest_seed_works() -> None:
    assert 0 <= Pcg.from_seed(2**64 - 1).next_64() < 2**64


def test_numbers_can_be_told_before_they_are_next() -> None:
    told, untold = Pcg.from_seed(3), Pcg.from_seed(3)
    numbers = [untold.next_24() for _ in range(6)]
    assert told.later_24(2) == numbers[2]
    assert told.next_24() == numbers[0]
    copied = copy(told)
    assert [told.next_24() for _ in range(5)] == numbers[1:]
    assert [copied.next_24() for _ in range(5)] == numbers[1:]
