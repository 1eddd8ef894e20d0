from __future__ import annotations

from dataclasses import dataclass

import pytest

from chaski.runner.engine.scheduler import Scheduler


@dataclass
class Waiting:
    """A prompt of `num_pending` tokens; it computes `at_once` of them together, or none."""

    name: str
    num_pending: int
    at_once: int = 1
    is_speculating: bool = False

    def share(self, max_tokens: int, max_outputs: int) -> int:
        return min(self.num_pending, max_tokens) // self.at_once * self.at_once if max_outputs else 0

    def num_outputs(self, count: int) -> int:
        return int(count == self.num_pending)


def waiting(text: str) -> list[Waiting]:
    """`a20`: 20 tokens; `a20/5`: in groups of five."""
    words = [(word[0], *map(int, word[1:].split("/"))) for word in text.split()]
    return [Waiting(*word) for word in words]


def shown(batch: list[tuple[Waiting, int]]) -> str:
    return " ".join(f"{sequence.name}{count}" for sequence, count in batch)


@pytest.mark.parametrize(
    ("pending", "max_tokens", "batch"),
    [
        ("", 8, ""),
        ("a0", 8, ""),
        ("a1", 8, "a1"),
        ("a5", 8, "a5"),
        ("a20", 8, "a8"),
        ("a1 b0 c1", 8, "a1 c1"),
        ("a1 b1 c1", 8, "a1 b1 c1"),
        ("a20 b1", 8, "b1 a7"),
        ("a20 b1 c1", 8, "b1 c1 a6"),
        ("a3 b3 c3", 8, "a3 b3 c2"),
        ("a8 b8", 8, "a8"),
        ("a2 b20 c1 d2", 8, "c1 a2 d2 b3"),
        ("a1 b1 c9", 3, "a1 b1 c1"),
        ("a1 b1", 2, "a1 b1"),
        ("a20 b5", 8, "b5 a3"),
        ("a20/6 b5", 8, "b5"),
        ("a20/6 b1 c2", 8, "b1 c2"),
    ],
)
def test_batches(pending: str, max_tokens: int, batch: str) -> None:
    assert shown(Scheduler(max_tokens, 8).next(waiting(pending))) == batch


def test_outputs_are_bounded_too() -> None:
    assert shown(Scheduler(8, 2).next(waiting("a1 b1 c1 d9"))) == "a1 b1"


def test_prompts_that_got_nothing_come_next() -> None:
    scheduler: Scheduler[Waiting] = Scheduler(8, 8)
    a, b, c = waiting("a8 b8 c1")
    assert shown(scheduler.next([a, b, c])) == "c1 a7"
    assert shown(scheduler.next([a, b, c])) == "c1 b7"
    assert shown(scheduler.next([a, b, c])) == "c1 a7"


def test_short_prompts_do_not_keep_a_long_one_waiting() -> None:
    scheduler: Scheduler[Waiting] = Scheduler(8, 8)
    (long,) = waiting("z100")
    served = 0
    for _ in range(10):
        batch = scheduler.next([long, *waiting("a8")])
        served += sum(count for sequence, count in batch if sequence is long)
    assert served >= 5 * 8


def test_what_needs_much_room_at_once_gets_it_after_one_batch() -> None:
    scheduler: Scheduler[Waiting] = Scheduler(8, 8)
    sequences = waiting("a1 b1 c1 d16/7")
    assert shown(scheduler.next(sequences)) == "a1 b1 c1"
    assert shown(scheduler.next(sequences)) == "d7 a1"
    assert shown(scheduler.next(sequences)) == "a1 b1 c1"


def test_everybody_ends_while_there_is_room_for_one_token_each() -> None:
    scheduler: Scheduler[Waiting] = Scheduler(3, 3)
    sequences = waiting("a30 b1 c7")
    for _ in range(30 + 1 + 7):
        for sequence, count in scheduler.next(sequences):
            sequence.num_pending -= count
    assert [sequence.num_pending for sequence in sequences] == [0, 0, 0]
