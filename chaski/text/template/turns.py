"""Changes to turns that stricter templates need: fewer roles, in fewer places, that alternate.

Each change returns a conversation with the same words. It alters only the turns that need it. So the text of
earlier turns stays the same as a conversation grows, and the prefix cache can reuse it.
`content` may be text or a list of parts; transformers' templates accept both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

__all__ = [
    "Message",
    "alternating",
    "developer_as_system",
    "in_parts",
    "joined",
    "late_system_as_user",
    "one_system",
    "orphans_as_user",
    "results_as_user",
    "results_with_comments",
    "system_as_user",
    "with_question",
    "words_with_calls",
]

Message = Mapping[str, Any]

_SYSTEM = ("system", "developer")


def in_parts(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the conversation with each text as a list of one part, or as an empty list if it is empty."""
    return [
        {**message, "content": _parts(message["content"]) if message["content"] else []}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def developer_as_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Change the role of developer messages to system."""
    return _with_role(messages, ("developer",), "system")


def system_as_user(messages: Sequence[Message]) -> Sequence[Message]:
    """Change the role of system and developer messages to user, in place."""
    return _with_role(messages, _SYSTEM, "user")


def late_system_as_user(messages: Sequence[Message]) -> Sequence[Message]:
    """Change the role of system messages after the first other message to user, in place."""
    first = _num_leading(messages)
    return [*messages[:first], *system_as_user(messages[first:])]


def one_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Merge the system messages at the beginning into one."""
    first = _num_leading(messages)
    return [_merged(messages[:first]), *messages[first:]] if first > 1 else messages


def results_as_user(messages: Sequence[Message]) -> Sequence[Message]:
    """Change the role of tool results to user."""
    return _with_role(messages, ("tool",), "user")


def orphans_as_user(messages: Sequence[Message]) -> Sequence[Message]:
    """Change the role of results that do not follow a turn with calls to user."""
    turns: list[Message] = []
    follows_calls = False
    for message in messages:
        is_result = message.get("role") == "tool"
        turns.append({**message, "role": "user"} if is_result and not follows_calls else message)
        follows_calls = bool(message.get("tool_calls")) or (is_result and follows_calls)
    return turns


def results_with_comments(messages: Sequence[Message]) -> Sequence[Message]:
    """Merge a user message that follows a tool result into that result."""
    turns: list[Message] = []
    for message in messages:
        if turns and (turns[-1].get("role"), message.get("role")) == ("tool", "user"):
            turns[-1] = _merged([turns[-1], message])
        else:
            turns.append(message)
    return turns


def alternating(messages: Sequence[Message]) -> Sequence[Message]:
    """Merge adjacent turns of one role, except tool results and turns with calls; the user speaks first."""
    turns: list[Message] = []
    for (role, calls), neighbours in groupby(messages, _kind):
        group = list(neighbours)
        turns += group if calls or role == "tool" else [_merged(group)]
    first = next((index for index, turn in enumerate(turns) if turn.get("role") != "system"), None)
    if first is not None and turns[first].get("role") != "user":
        turns.insert(first, {"role": "user", "content": ""})
    return turns


def words_with_calls(messages: Sequence[Message]) -> Sequence[Message]:
    """Merge the assistant's text into the turn with calls that follows it."""
    turns: list[Message] = []
    for message in messages:
        if turns and message.get("tool_calls") and _kind(turns[-1]) == ("assistant", False):
            turns[-1] = _merged([turns[-1], message])
        else:
            turns.append(message)
    return turns


def with_question(messages: Sequence[Message]) -> Sequence[Message]:
    """Add an empty user turn after the system messages to a conversation that has no user turn."""
    if any(message.get("role") == "user" for message in messages):
        return messages
    first = _num_leading(messages)
    return [*messages[:first], {"role": "user", "content": ""}, *messages[first:]]


def joined(first: Any, second: Any) -> Any:
    """Join two contents, with a blank line between texts."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _kind(message: Message) -> tuple[Any, bool]:
    return message.get("role"), bool(message.get("tool_calls"))


def _with_role(messages: Sequence[Message], roles: Sequence[str], role: str) -> Sequence[Message]:
    return [{**message, "role": role} if message.get("role") in roles else message for message in messages]


def _num_leading(messages: Sequence[Message]) -> int:
    """Return the number of system messages at the start of a conversation."""
    return sum(1 for _ in takewhile(lambda message: message.get("role") in _SYSTEM, messages))


def _merged(messages: Sequence[Message]) -> Message:
    """Merge messages into one; except for texts and calls, all fields are those of the first."""
    if len(messages) == 1:
        return messages[0]
    found: dict[str, Any] = {}
    for message in messages:
        for key, value in message.items():
            if key == "content":
                found[key] = joined(found.get(key), value)
            elif key in ("thinking", "reasoning_content"):
                found[key] = "\n\n".join(text for text in (found.get(key), value) if text)
            elif key == "tool_calls":
                found[key] = [*(found.get(key) or ()), *(value or ())]
            else:
                found.setdefault(key, value)
    return found


def _parts(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
