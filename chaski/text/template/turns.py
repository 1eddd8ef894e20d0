"""Conversations in forms that stricter templates take: many want one system message, then user and assistant
in turns, and raise an exception for all else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from chaski.errors import TemplateError

__all__ = ["RefusalError", "in_parts", "stricter_forms"]

_Message = Mapping[str, Any]


class RefusalError(TemplateError):
    """A template itself raises an exception for a conversation, mostly for the order of its roles."""


def stricter_forms(messages: Sequence[_Message]) -> Iterator[Sequence[_Message]]:
    """Yield the conversation as fewer and plainer turns, the form that changes the least first.

    Each form is made from the one before it; nothing that was said is lost. `content` may be text or a list
    of parts, as transformers' templates take both.
    """
    for change in (_alternating, _system_in_front, _results_with_comments, _system_in_user_turn):
        changed = _alternating(change(messages))
        if changed != messages:
            yield changed
        messages = changed


def in_parts(messages: Sequence[_Message]) -> Sequence[_Message]:
    """Return the conversation with each text as a list of one part, or of none where it is empty."""
    return [
        {**message, "content": _parts(message["content"]) if message["content"] else []}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _alternating(messages: Sequence[_Message]) -> Sequence[_Message]:
    """Merge neighbours of one role, except results of tools; the user speaks first."""
    turns: list[_Message] = []
    for role, neighbours in groupby(messages, lambda message: message.get("role")):
        group = list(neighbours)
        turns += group if role == "tool" else [_merged(group)]
    first = next((index for index, turn in enumerate(turns) if turn.get("role") != "system"), len(turns))
    if [turn.get("role") for turn in turns[first : first + 1]] != ["user"]:
        turns.insert(first, {"role": "user", "content": ""})
    return turns


def _system_in_front(messages: Sequence[_Message]) -> Sequence[_Message]:
    """Move all system messages to the front, as one."""
    system = [message for message in messages if message.get("role") == "system"]
    return [*system, *(message for message in messages if message.get("role") != "system")]


def _results_with_comments(messages: Sequence[_Message]) -> Sequence[_Message]:
    """Merge a user's message right behind the result of a tool into that result."""
    turns: list[_Message] = []
    for message in messages:
        if turns and (turns[-1].get("role"), message.get("role")) == ("tool", "user"):
            turns[-1] = _merged([turns[-1], message])
        else:
            turns.append(message)
    return turns


def _system_in_user_turn(messages: Sequence[_Message]) -> Sequence[_Message]:
    """Turn system messages into user messages, which are merged with the user's own turn behind them."""
    return [
        {**message, "role": "user"} if message.get("role") == "system" else message for message in messages
    ]


def _merged(messages: Sequence[_Message]) -> _Message:
    """Merge messages into one; all but texts and calls is that of the first."""
    if len(messages) == 1:
        return messages[0]
    found: dict[str, Any] = {}
    for message in messages:
        for key, value in message.items():
            if key == "content":
                found[key] = _joined(found.get(key), value)
            elif key in ("thinking", "reasoning_content"):
                found[key] = "\n\n".join(text for text in (found.get(key), value) if text)
            elif key == "tool_calls":
                found[key] = [*(found.get(key) or ()), *(value or ())]
            else:
                found.setdefault(key, value)
    return found


def _joined(first: Any, second: Any) -> Any:
    """Join two contents, with a blank line between texts."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
