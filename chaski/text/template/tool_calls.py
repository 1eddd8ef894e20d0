"""Changes to calls and results that stricter templates need: other ids, fewer calls per turn, plain text.

Calls have the form of transformers' templates: `{"type": "function", "id": …, "function": {"name": …,
"arguments": …}}`. Each change alters only the turns that need it, as in `turns`.
"""

from __future__ import annotations

import json
import re
from base64 import b32hexencode
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from chaski.text.template.turns import Message, joined

__all__ = [
    "arguments_as_mapping",
    "arguments_as_text",
    "calls_as_metadata",
    "calls_as_text",
    "ids_everywhere",
    "naming_ids",
    "short_ids",
    "single_calls",
    "text_apart",
]

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_NAMING_ID = re.compile(r"functions\.(.+):\d+")

# Makes the new id of a call from its old one, its name, and its number in the conversation.
_Renamed = Callable[[str, str, int], str]


def ids_everywhere(messages: Sequence[Message]) -> Sequence[Message]:
    """Give an id to each call without one, and to each result the id of its call."""
    return _with_ids(messages, lambda old, _, number: old or _numbered(number))


def short_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Give each call, and its result, an id of nine letters and digits that depends only on its old id."""
    return _with_ids(messages, _short_id)


def naming_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Give each call an id such as `functions.weather:0`, for templates that write only the id."""
    return _with_ids(messages, _naming_id)


def arguments_as_text(messages: Sequence[Message]) -> Sequence[Message]:
    """Write the arguments of calls as JSON."""
    return _with_arguments(messages, lambda given: given if isinstance(given, str) else _json(given))


def arguments_as_mapping(messages: Sequence[Message]) -> Sequence[Message]:
    """Wrap arguments that are invalid JSON, and therefore text, as the only value of a mapping."""
    return _with_arguments(messages, lambda given: {"arguments": given} if isinstance(given, str) else given)


def text_apart(messages: Sequence[Message], beside: str = "tool_calls") -> Sequence[Message]:
    """Move text that accompanies calls to a separate turn before them; a thought stays with the calls.

    Only turns that also contain the field `beside` are changed.
    """
    turns: list[Message] = []
    for message in messages:
        if message.get("tool_calls") and message.get("content") and message.get(beside):
            turns.append({"role": message["role"], "content": message["content"]})
            message = {**message, "content": ""}
        turns.append(message)
    return turns


def single_calls(messages: Sequence[Message]) -> Sequence[Message]:
    """Give each call a separate turn, followed by its result. Text and thought stay with the first call."""
    turns: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            turns.append(message)
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index].get("role") == "tool":
            results.append(messages[index])
            index += 1
        for number, call in enumerate(calls):
            rest = message if number == 0 else {"role": message["role"], "content": ""}
            turns.append({**rest, "tool_calls": [call]})
            turns += _taken(results, call, others=calls[number + 1 :])
        turns += results
    return turns


def calls_as_metadata(messages: Sequence[Message]) -> Sequence[Message]:
    """Give each call a turn with its name as `metadata`, and results the role observation, as in GLM 4."""
    turns: list[Message] = []
    for message in messages:
        if message.get("role") == "tool":
            turns.append({**message, "role": "observation"})
            continue
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        if rest.get("content") or not message.get("tool_calls"):
            turns.append(rest)
        for function in map(_function, message.get("tool_calls") or ()):
            arguments = function.get("arguments")
            text = arguments if isinstance(arguments, str) else _json(arguments)
            turns.append({"role": message["role"], "metadata": function.get("name"), "content": text})
    return turns


def calls_as_text(messages: Sequence[Message], opening: str = "", closing: str = "") -> Sequence[Message]:
    """Write calls as JSON into the content of their turn, each between `opening` and `closing`.

    An `opening` without a `closing` precedes a list of all calls.
    """
    return [_with_calls_as_text(m, opening, closing) if m.get("tool_calls") else m for m in messages]


def _with_calls_as_text(message: Message, opening: str, closing: str) -> Message:
    functions = [_function(call) for call in message["tool_calls"]]
    if opening and not closing:
        text = opening + _json(functions)
    else:
        text = "\n".join(f"{opening}{_json(function)}{closing}" for function in functions)
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    content = message.get("content")
    return {**rest, "content": f"{content or ''}{text}" if opening and not closing else joined(content, text)}


def _with_ids(messages: Sequence[Message], renamed: _Renamed) -> Sequence[Message]:
    found: list[Message] = []
    waiting: list[tuple[str, str, str]] = []  # old id, name and new id of calls still without a result
    number = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            waiting, changed = [], []
            for call in calls:
                old, name = call.get("id") or "", str(_function(call).get("name") or "")
                waiting.append((old, name, renamed(old, name, number)))
                changed.append({**call, "id": waiting[-1][2]})
                number += 1
            message = {**message, "tool_calls": changed}
        elif message.get("role") == "tool":
            new = _result_id(message, waiting) or renamed(message.get("tool_call_id") or "", "", number)
            message = {**message, "tool_call_id": new}
        found.append(message)
    return found


def _result_id(result: Message, waiting: list[tuple[str, str, str]]) -> str | None:
    """Return the new id of a result and remove its call from `waiting`; None if no call waits for it.

    A result without an id belongs to the first waiting call of its name, or else to the first waiting call.
    """
    own, name = result.get("tool_call_id") or "", result.get("name")
    if own:
        fitting = [each for each in waiting if each[0] == own]
    else:
        fitting = [each for each in waiting if each[1] == name] or waiting
    if not fitting:
        return None
    found = fitting[0]
    waiting.remove(found)
    return found[2]


def _taken(results: list[Message], call: Mapping[str, Any], others: Sequence[Any]) -> list[Message]:
    """Take a call's result out of those of its turn: the one with its id, or the first without an id."""
    own = call.get("id")
    found = next((each for each in results if own and each.get("tool_call_id") == own), None)
    if found is None:
        ids = {other.get("id") for other in others}
        found = next((each for each in results if each.get("tool_call_id") not in ids - {None, ""}), None)
    if found is None:
        return []
    results.remove(found)
    return [found]


def _short_id(old: str, _: str, number: int) -> str:
    if _SHORT_ID.fullmatch(old):
        return old
    digest = blake2b(old.encode("utf-8", "surrogatepass"), digest_size=10).digest()
    return b32hexencode(digest).decode("ascii")[:9] if old else _numbered(number)


def _naming_id(old: str, name: str, number: int) -> str:
    return old if not name or _NAMING_ID.fullmatch(old) else f"functions.{name}:{number}"


def _numbered(number: int) -> str:
    return f"call{number:05d}"


def _with_arguments(messages: Sequence[Message], change: Callable[[Any], Any]) -> Sequence[Message]:
    def changed(call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = _function(call)
        return {**call, "function": {**function, "arguments": change(function.get("arguments"))}}

    return [
        {**message, "tool_calls": [changed(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _function(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = call.get("function", call)
    return function


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
