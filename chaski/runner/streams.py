"""`EventStream` and `AsyncEventStream`: the events of an answer, read one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Any

from chaski.chat.events import Done, Event

__all__ = ["AsyncEventStream", "EventStream"]


class _Progress:
    """How far a stream was read."""

    def __init__(self, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._num_events = 0
        self._is_done = False

    def check(self) -> None:
        """Raise ClosedError if the model was closed before the last event was read."""
        if not self._is_done:
            self._check_open()

    def read(self, event: Event) -> Event:
        """Count an event, and return it."""
        self._num_events += 1
        self._is_done = isinstance(event, Done)
        return event

    def __str__(self) -> str:
        noun = "event" if self._num_events == 1 else "events"
        return f"{self._num_events} {noun} read" + (", done" if self._is_done else "")


class EventStream(Generator[Event, None, None]):
    """`Text` as it is made, for conversations also `Thinking` and `ToolCall`, and finally one `Done`.

    Closing it ends the answer. Raises ClosedError if the model is closed before the last event was read.
    """

    def __init__(self, events: Generator[Event, None, None], check_open: Callable[[], None]) -> None:
        self._events = events
        self._progress = _Progress(check_open)

    def __next__(self) -> Event:
        self._progress.check()
        return self._progress.read(next(self._events))

    def send(self, value: None) -> Event:
        """Return the next event."""
        return next(self)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Event:
        """Raise an error where the stream waits, which ends the answer."""
        return self._events.throw(kind if value is None else value)

    def close(self) -> None:
        """End the answer."""
        self._events.close()

    def __repr__(self) -> str:
        return f"<EventStream: {self._progress}>"


class AsyncEventStream(AsyncGenerator[Event, None]):
    """The events of `EventStream` for event loops. Closing it, or cancelling its task, ends the answer."""

    def __init__(self, events: AsyncGenerator[Event, None], check_open: Callable[[], None]) -> None:
        self._events = events
        self._progress = _Progress(check_open)

    async def __anext__(self) -> Event:
        self._progress.check()
        return self._progress.read(await anext(self._events))

    async def asend(self, value: None) -> Event:
        """Return the next event."""
        return await anext(self)

    async def athrow(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Event:
        """Raise an error where the stream waits, which ends the answer."""
        return await self._events.athrow(kind if value is None else value)

    async def aclose(self) -> None:
        """End the answer."""
        await self._events.aclose()

    def __repr__(self) -> str:
        return f"<AsyncEventStream: {self._progress}>"
