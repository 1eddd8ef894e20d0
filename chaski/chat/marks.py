"""Marks: places in a conversation up to which its prompt is to be kept for a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

__all__ = ["Hold", "Holds", "Mark", "altered", "common_length"]

Hold: TypeAlias = tuple[int, int]
"""A number of first tokens of a prompt, with the seconds for which they are held from their last use."""

Holds: TypeAlias = tuple[Hold, ...]

# A letter for private use, which no template writes.
_OTHER = "\ue0c4"


class Mark(Struct, frozen=True):
    """The prompt is kept for `seconds` up to a place: after `characters` characters of a message's content.

    `message` is the number of the message in its conversation; a missing one means the prompt's end.
    """

    message: int
    characters: int
    seconds: int


def altered(messages: Sequence[Mapping[str, Any]], mark: Mark) -> list[Mapping[str, Any]] | None:
    """Return a conversation that differs from the mark on; None if nothing follows it."""
    if mark.message >= len(messages):
        return None
    message = messages[mark.message]
    content = message.get("content") or ""
    if not isinstance(content, str):
        return None
    changed = content[: mark.characters] + _OTHER + content[mark.characters :]
    return [
        *messages[: mark.message],
        {**message, "content": changed},
        *messages[mark.message + 1 :],
    ]


def common_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the length of the longest common prefix of two texts or lists."""
    same, different = 0, min(len(a), len(b)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            different = middle
    return same
