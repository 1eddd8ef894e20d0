from __future__ import annotations

from collections.abc import Iterable

from chaski.cluster.autoscaling import Bounds, Scaler


def followed(scaler: Scaler, answers: Iterable[int], start: float = 0.0) -> list[int]:
    return [scaler.wanted(count, 4, start + second) for second, count in enumerate(answers, start=1)]


def test_replicas_come_when_places_are_missing_for_some_seconds() -> None:
    scaler = Scaler(Bounds(1, 3), 0.0)
    assert set(followed(scaler, [4] * 60)) == {1}
    numbers = followed(scaler, [6] * 20, 60.0)
    assert numbers[:2] == [1, 1]
    assert numbers[-1] == 2
    assert followed(scaler, [30] * 30, 80.0)[-1] == 3


def test_a_moment_of_many_or_of_few_changes_nothing() -> None:
    assert set(followed(Scaler(Bounds(1, 3), 0.0), [1, 1, 9, 1, 1, 1] * 20)) == {1}
    assert followed(Scaler(Bounds(1, 3), 0.0), [9, 9, 0, 9, 9, 9] * 20)[-1] >= 2


def test_replicas_go_one_by_one_when_nobody_needs_them() -> None:
    scaler = Scaler(Bounds(1, 3), 0.0)
    assert followed(scaler, [12] * 60)[-1] == 3
    numbers = followed(scaler, [1] * 200, 60.0)
    assert numbers[50] == 3
    assert numbers[80] == 2
    assert numbers[-1] == 1
    assert set(followed(scaler, [0] * 300, 300.0)) == {1}
