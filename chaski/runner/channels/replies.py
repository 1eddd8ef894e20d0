"""The replies to several calls, collected as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from chaski.chat.answer import Answer, collect
from chaski.chat.events import Done, Event
from chaski.chat.images import ImageSource, image_bytes
from chaski.chat.requests import sendable
from chaski.chat.several import Request
from chaski.runner.channels.messages import Answerable, ModelReply, ReplyCallback, ReplyOrError, Tokenize

__all__ = ["ManyReplies", "checked", "numbered", "with_images"]


class ManyReplies:
    """Collects the answers to several requests, whose events may arrive in any order.

    calls  the call of each request; raises an error that names its place if one cannot be sent
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.calls: list[Answerable] = []
        for request in requests:
            with request.naming():
                self.calls.append(sendable(request.call, request.images))
        self.num_left = len(requests)
        self.label = f"{len(requests)} answers"
        self._requests = requests
        self._events: list[list[Event]] = [[] for _ in requests]

    @property
    def done(self) -> float:
        """The fraction of answers that are complete, from 0 to 1."""
        return 1 - self.num_left / len(self._requests)

    def add(self, index: int, reply: ReplyOrError) -> bool:
        """Add a reply to call `index`, and return whether its answer is complete.

        If the reply is an error, raises it with the index of its request.
        """
        with self._requests[index].naming():
            event = checked(reply)
        assert isinstance(event, Event), "an answer is made of events"
        self._events[index].append(event)
        is_done = isinstance(event, Done)
        self.num_left -= is_done
        return is_done

    def answers(self) -> list[Answer]:
        """Return all answers, in the order of their requests."""
        return [collect(events) for events in self._events]


def checked(reply: ReplyOrError) -> ModelReply:
    """Return a reply, or raise the error that replaces it."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def numbered(put: Callable[[tuple[int, ReplyOrError]], None], index: int) -> ReplyCallback:
    """Return a callback that passes on the replies to a call together with its number."""
    return lambda reply: put((index, reply))


def with_images(call: Tokenize, images: Sequence[ImageSource]) -> Tokenize:
    """Return the call with its images read as bytes."""
    return replace(call, images=tuple(map(image_bytes, images))) if images else call
