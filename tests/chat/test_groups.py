from __future__ import annotations

import pytest

from chaski.chat.groups import Groups, not_inside, outside, without
from chaski.runner.generation.request import Shift
from chaski.runner.prefix.slots import Slot, place

IMAGE: Groups = (range(2, 5), range(5, 9))


@pytest.mark.parametrize(
    ("position", "before", "after"),
    [(0, 0, 0), (2, 2, 2), (3, 2, 5), (5, 5, 5), (8, 5, 9), (9, 9, 9), (20, 20, 20)],
)
def test_borders(position: int, before: int, after: int) -> None:
    assert not_inside(position, IMAGE) == before
    assert outside(position, IMAGE) == after


def test_groups_behind_what_is_dropped_move_down() -> None:
    assert without(range(1, 5), IMAGE) == (range(1, 5),)
    assert without(range(1), IMAGE) == (range(1, 4), range(4, 8))
    assert without(range(5, 12), IMAGE) == (range(2, 5),)


def group(length: int, *starts: int) -> Groups:
    return tuple(range(start, start + length) for start in starts)


@pytest.mark.parametrize(
    ("shift", "groups", "dropped"),
    [
        (Shift(2048, 5), group(512, 1000), range(5, 1512)),
        (Shift(2048, 5), group(512, 10), range(5, 1013)),
        (Shift(32, 0), group(10, 0, 10, 20, 30), range(20)),
        (Shift(32, 0), group(10, 4, 8, 14), range(24)),
        pytest.param(
            Shift(32, 6), group(10, 4), range(4, 19), id="a group that begins in what stays goes too"
        ),
    ],
)
def test_a_full_context_drops_whole_groups(shift: Shift, groups: Groups, dropped: range) -> None:
    assert shift.dropped(groups) == dropped


@pytest.mark.parametrize(
    ("held", "wanted", "length"),
    [
        (group(4, 2), group(4, 2), 8),
        ((), group(4, 2), 2),
        (group(4, 2), (), 2),
        (group(4, 2), group(3, 2), 2),
        pytest.param(group(4, 6), group(4, 6), 6, id="only the first half of the group is held"),
        pytest.param(group(4, 20), (), 8, id="behind what is held"),
    ],
)
def test_groups_are_taken_over_whole_or_not_at_all(held: Groups, wanted: Groups, length: int) -> None:
    slot = Slot(0, list(range(8)), held)
    placement = place([slot], list(range(12)), wanted)
    assert placement is not None
    assert placement.length == length
