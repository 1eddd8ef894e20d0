"""Conversations that outgrow the context: the oldest turns are left out, as many as have to be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["shortened"]

Message = Mapping[str, Any]


def shortened(messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]) -> Sequence[Message]:
    """The messages without the oldest turns, as few as it takes until what is left fits.

    System messages stay, and so does the last turn, even if it alone does not fit. A turn begins with a
    message of the user, so that templates which want roles in turns can write what is left.
    """
    begins = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if not begins:
        return messages

    def since(begin: int) -> list[Message]:
        system = [message for message in messages[:begin] if message.get("role") == "system"]
        return [*system, *messages[begin:]]

    first = bisect_left(begins[:-1], True, key=lambda begin: fits(since(begin)))
    return since(begins[first])
