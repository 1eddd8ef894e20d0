"""The event loop of a simulated world: its time is the virtual clock, and it waits as a simulated thread."""

from __future__ import annotations

import asyncio
from heapq import heappop
from typing import Any

from tests.simulation.scheduler import SCHEDULER, Thread

__all__ = ["Loop"]


class _Task(asyncio.Task[Any]):
    number: int | None = None

    def __hash__(self) -> int:
        return _number(self)


class _Future(asyncio.Future[Any]):
    number: int | None = None

    def __hash__(self) -> int:
        return _number(self)


def _number(awaitable: _Task | _Future) -> int:
    """Return the same number in every replay, for the order of sets."""
    if awaitable.number is None:
        awaitable.number = next(SCHEDULER.numbers)
    return awaitable.number


class Loop(asyncio.BaseEventLoop):
    """An event loop without sockets. Callbacks run in their order, as asyncio promises; other threads may run
    between any two of them.
    """

    _ready: Any
    _scheduled: Any
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._waiting: Thread | None = None
        self.set_task_factory(lambda loop, coroutine, **options: _Task(coroutine, loop=loop, **options))

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def time(self) -> float:
        return SCHEDULER.now

    def _run_once(self) -> None:
        scheduled, now = self._scheduled, self.time()
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= now):
            handle = heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)
        if not self._ready and not self._stopping:
            self._waiting = SCHEDULER.current
            try:
                SCHEDULER.wait(scheduled[0]._when - now if scheduled else None)
            finally:
                self._waiting = None
            return
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()
            SCHEDULER.pause()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are dropped when they are the next ones."""

    def _write_to_self(self) -> None:
        if self._waiting is not None:
            SCHEDULER.wake(self._waiting)

    def _process_events(self, event_list: object) -> None:
        """Do nothing, since no file is watched."""
