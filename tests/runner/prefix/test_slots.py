from __future__ import annotations

import pytest

from chaski.runner.prefix.slots import Policy, Slot, common_prefix, place


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        ([], [], 0),
        ([], [1], 0),
        ([1], [1, 2, 3], 1),
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 2, 4, 5], 2),
        ([2], [1], 0),
    ],
)
def test_common_prefix(a: list[int], b: list[int], length: int) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == length


def slot(index: int, tokens: list[int], last_used: int = 1, is_free: bool = True) -> Slot:
    return Slot(index, tokens, (), is_free, last_used)


@pytest.mark.parametrize(
    ("slots", "prompt", "expected"),
    [
        pytest.param([slot(0, [], 0), slot(1, [], 0)], [1], (0, 0, 0), id="nothing held"),
        pytest.param([slot(0, [1]), slot(1, [1, 2], 0)], [1, 2], (1, 1, 2), id="longest prefix"),
        pytest.param([slot(0, [1, 2]), slot(1, [], 0)], [2], (0, 1, 0), id="none shared: never used"),
        pytest.param([slot(0, [1, 2]), slot(1, [], 0)], [1], (0, 1, 1), id="forked: too much would be lost"),
        pytest.param([slot(0, [1, 2, 9]), slot(1, [], 0)], [1, 2], (0, 0, 2), id="kept: little is lost"),
        pytest.param([slot(0, [1]), slot(1, [1, 2], 0)], [2, 3], (0, 1, 0), id="longest unused is lost"),
        pytest.param(
            [slot(0, [1, 2], 1, False), slot(1, [1])], [1, 2], (0, 1, 2), id="shared with a running one"
        ),
    ],
)
def test_place(slots: list[Slot], prompt: list[int], expected: tuple[int, int, int]) -> None:
    placement = place(slots, prompt)
    assert placement is not None
    assert (placement.source.index, placement.target.index, placement.length) == expected


@pytest.mark.parametrize(
    ("policy", "held", "prompt", "target"),
    [
        (Policy.SINGLE_USER, [1, 2, 3, 4, 5], [1, 9], 0),
        (Policy.SMALLER_LOSS, [1, 2, 3, 4, 5], [1, 9], 1),
        (Policy.MULTI_USER, [1, 2, 3, 4, 5], [1, 9], 1),
        (Policy.SMALLER_LOSS, [1, 2, 3, 4, 5], [1, 2, 3, 9], 0),
        (Policy.MULTI_USER, [1, 2, 3, 4, 5], [1, 2, 3, 9], 1),
        (Policy.MULTI_USER, [1, 2], [1, 2, 9], 0),
        pytest.param(Policy.SINGLE_USER, [1, 2], [9], 1, id="nothing is shared"),
    ],
)
def test_when_a_prompt_goes_on_where_others_ended(
    policy: Policy, held: list[int], prompt: list[int], target: int
) -> None:
    placement = place([slot(0, held, 2), slot(1, [], 0)], prompt, policy=policy)
    assert placement is not None
    assert placement.target.index == target


def test_no_slot_is_free() -> None:
    assert place([slot(0, [1], is_free=False)], [1]) is None
