"""The driver with an engine whose batches the test controls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaski.chat.events import Text
from chaski.errors import ChaskiError
from chaski.runner.channels.base_channel import ActiveCall
from chaski.runner.channels.engine_thread import EngineThread

REPLY = Text("a")


class HandEngine:
    """Computes a batch when a test calls `feed` with its result."""

    def __init__(self) -> None:
        self.submitted: list[HandSequence] = []
        self._batches = threading.Semaphore(0)
        self._next: deque[Callable[[], None]] = deque()

    def submit(self, sequence: HandSequence) -> None:
        self.submitted.append(sequence)

    def feed(self, batch: Callable[[], None] = lambda: None) -> None:
        self._next.append(batch)
        self._batches.release()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        while not is_ready():
            assert self._batches.acquire(timeout=10)
            self._next.popleft()()


class HandSequence:
    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.was_cancelled = threading.Event()

    def cancel(self) -> None:
        self.was_cancelled.set()


class Reader:
    """Keeps replies; `wait` waits until there is an unread one."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self._count = threading.Semaphore(0)

    def put(self, reply: Any) -> None:
        self.replies.append(reply)
        self._count.release()

    def wait(self) -> Any:
        assert self._count.acquire(timeout=10)
        return self.replies[-1]


class Bench:
    def __init__(self) -> None:
        self.engine: Any = HandEngine()
        self.flushes = 0
        self.driver = EngineThread(self.engine, self._flush)

    def _flush(self) -> None:
        self.flushes += 1

    def follow(self) -> tuple[HandSequence, ActiveCall, Reader]:
        sequence: Any = HandSequence()
        reader = Reader()
        task = ActiveCall(reader.put)
        self.driver.follow(sequence, task, reader.put)
        return sequence, task, reader


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for _ in range(3):
        bench.engine.feed()
    bench.driver.close()


def test_events_of_a_batch_are_flushed_once(bench: Bench) -> None:
    followed = [bench.follow() for _ in range(3)]

    def reply_to_all() -> None:
        for sequence, _, _ in followed:
            sequence.events.append(REPLY)

    bench.engine.feed(reply_to_all)
    assert [reader.wait() for _, _, reader in followed] == [REPLY] * 3
    bench.engine.feed(lambda: followed[0][0].events.append(REPLY))
    followed[0][2].wait()
    assert bench.flushes <= 2


def test_a_cancelled_task_ends_with_the_batch_that_computes(bench: Bench) -> None:
    sequence, task, reader = bench.follow()
    task.cancel()
    bench.engine.feed()
    assert sequence.was_cancelled.wait(10)
    sequence.events.append(REPLY)
    other, _, other_reader = bench.follow()
    bench.engine.feed(lambda: other.events.append(REPLY))
    assert other_reader.wait() == REPLY
    assert reader.replies == []


def test_a_failed_computation_ends_all_and_the_next_may_work(bench: Bench) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    followed = [bench.follow() for _ in range(2)]
    bench.engine.feed(fail)
    for sequence, _, reader in followed:
        assert str(reader.wait()) == "no room"
        assert sequence.was_cancelled.is_set()
    other, _, reader = bench.follow()
    bench.engine.feed(lambda: other.events.append(REPLY))
    assert reader.wait() == REPLY


def test_what_is_followed_after_the_end_fails(bench: Bench) -> None:
    _, _, before = bench.follow()
    bench.engine.feed()
    bench.driver.close()
    _, _, after = bench.follow()
    for reader in (before, after):
        assert isinstance(reader.wait(), ChaskiError)
        assert "is closed" in str(reader.replies[-1])
