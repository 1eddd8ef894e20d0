"""Shortening of conversations and texts that are longer than the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from chaski.chat.formats import Message

__all__ = ["cut", "shortened"]


def shortened(messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]) -> Sequence[Message]:
    """Return the messages without the oldest turns, as few as possible so that the others fit.

    System messages stay, and so does the last turn, even if it alone does not fit. A turn begins with a
    message of the user, so that templates which require alternating roles can write the others.
    """
    begins = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if not begins:
        return messages

    def since(begin: int) -> list[Message]:
        system = [message for message in messages[:begin] if message.get("role") == "system"]
        return [*system, *messages[begin:]]

    first = bisect_left(begins[:-1], True, key=lambda begin: fits(since(begin)))
    return since(begins[first])


def cut(ids: Sequence[int], bare: Sequence[int], length: int) -> list[int]:
    """Return the first tokens of a text that is too long, at most `length`, with its closing tokens.

    The closing tokens (EOS, or the SEP of encoders) stay, because models for embeddings read them. `bare`
    are the tokens of the text without opening and closing tokens.
    """
    opening = next(
        (n for n in range(len(ids) - len(bare) + 1) if list(ids[n : n + len(bare)]) == list(bare)), 0
    )
    closing = ids[opening + len(bare) :]
    kept = max(0, length - len(closing))
    return [*ids[:kept], *closing][:length]
