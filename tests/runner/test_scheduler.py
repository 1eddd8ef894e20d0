from __future__ import annotations

from dataclasses import dataclass

import pytest

from chaski.runner.scheduler import schedule


@dataclass(frozen=True)
class Waiting:
    name: str
    num_pending: int


@pytest.mark.parametrize(
    ("pending", "max_tokens", "batch"),
    [
        ("", 8, ""),
        ("a1", 8, "a1"),
        ("a5", 8, "a5"),
        ("a20", 8, "a8"),
        ("a1 b1 c1", 8, "a1 b1 c1"),
        ("a20 b1", 8, "b1 a7"),
        ("a20 b1 c1", 8, "b1 c1 a6"),
        ("a3 b3 c3", 8, "a3 b3 c2"),
        ("a8 b8", 8, "a8"),
        ("a2 b20 c1 d2", 8, "c1 a2 b5"),
        ("a1 b1 c9", 3, "a1 b1 c1"),
        ("a1 b1", 2, "a1 b1"),
    ],
)
def test_batches(pending: str, max_tokens: int, batch: str) -> None:
    waiting = [Waiting(word[0], int(word[1:])) for word in pending.split()]
    shares = schedule(waiting, max_tokens)
    assert " ".join(f"{sequence.name}{count}" for sequence, count in shares) == batch


def test_everybody_ends_while_there_is_room_for_one_token_each() -> None:
    left = {"a": 30, "b": 1, "c": 7}
    for _ in range(30 + 1 + 7):
        for sequence, count in schedule([Waiting(*item) for item in left.items() if item[1]], 3):
            left[sequence.name] -= count
    assert left == {"a": 0, "b": 0, "c": 0}
