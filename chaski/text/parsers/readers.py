"""Readers that turn the text of tool calls into `FoundCall`s, one for each notation.

A reader takes the text between the tags of its format, and the tools of the request. It returns the calls, or
None if the text is not a call; it never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from chaski.text.parsers.brace_text import load_braces
from chaski.text.parsers.json_text import json_values, load_json, unfenced
from chaski.text.parsers.pieces import FoundCall
from chaski.text.parsers.python_text import load_calls
from chaski.text.parsers.schema import Schema, Tools, names_of, parameters_of, typed

CallReader: TypeAlias = Callable[[str, Tools], list[FoundCall] | None]

_NAME_KEYS = ("name", "tool_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_NO_CALL = {"directly_answer", "directly-answer"}
_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)


def read_json(text: str, tools: Tools) -> list[FoundCall] | None:
    """Read consecutive JSON objects or lists of them: `{"name": …, "arguments": {…}}`."""
    try:
        values = list(json_values(unfenced(text)))
        calls = [_call(item) for value in values for item in (value if isinstance(value, list) else [value])]
    except _FAULTS:
        return None
    return calls if values else None


def read_actions(text: str, tools: Tools) -> list[FoundCall] | None:
    """Read Command R's list of calls, one of which may state that there is nothing to call."""
    calls = read_json(text, tools)
    return None if calls is None else [call for call in calls if call.name not in _NO_CALL]


def read_known_json(text: str, tools: Tools) -> list[FoundCall] | None:
    """Read JSON calls without a tag, only of the request's tools, as an answer may be JSON as well."""
    return _known(read_json(text, tools), tools)


def read_named_json(mark: str, before: str = "", after: str = "[CALL_ID]") -> CallReader:
    """Return a reader of a name, the mark and JSON arguments: Mistral's `name[ARGS]{…}`, or DeepSeek's.

    An id and the mark `before` may precede the name, or the mark `after` and an id may follow it. Kimi's
    names have a namespace and an index: `functions.name:0`.
    """

    def read(text: str, tools: Tools) -> list[FoundCall] | None:
        name, found, arguments = text.partition(mark)
        if not found:
            return read_json(text, tools)
        name = name.rpartition(before)[2] if before else name
        name = name.partition(after)[0].strip()
        if name == "function":
            # DeepSeek R1 writes the type first, then the name before the arguments, which are never missing.
            if own := _NAME.match(arguments):
                name, arguments = own[1], arguments[own.end() :]
            if not arguments.strip():
                return None
        try:
            found = _plain_name(name, tools)
            return [_made(found, _only_arguments(unfenced(arguments), found, tools))]
        except _FAULTS:
            return None

    return read


def read_keyed_json(text: str, tools: Tools) -> list[FoundCall] | None:
    """Read Apertus's calls: objects with the name as their key, or a list of them: `[{"name": {…}}]`."""
    try:
        values = list(json_values(text))
        items = [item for value in values for item in (value if isinstance(value, list) else [value])]
        calls = [_made(name, arguments) for item in items for name, arguments in item.items()]
    except (*_FAULTS, AttributeError, TypeError):
        return read_json(text, tools)
    return calls or None


def read_arguments(text: str, name: str, tools: Tools) -> Mapping[str, Any] | None:
    """Read the arguments of a call with a known name: a JSON object, or nothing if the tool needs none."""
    try:
        return _made(name, _only_arguments(text, name, tools)).arguments
    except _FAULTS:
        return None


def read_python(text: str, tools: Tools) -> list[FoundCall] | None:
    """Read calls in Python syntax with named literals: `f(a=1)`, one per line or in a list."""
    try:
        return load_calls(unfenced(text))
    except _FAULTS:
        return None


def read_json_or_python(text: str, tools: Tools) -> list[FoundCall] | None:
    """Read JSON, or Python as Llama calls its built-in tools: `brave_search.call(query="…")`."""
    calls = read_json(text, tools)
    return read_python(text, tools) if calls is None else calls


def read_known_list(text: str, tools: Tools) -> list[FoundCall] | None:
    """Read a list of calls without a tag in JSON or Python, only of the request's tools."""
    return _known(read_json_or_python(text, tools), tools)


def read_braces(quote: str) -> CallReader:
    """Return a reader of Gemma's `call:f{a:<escape>text<escape>,b:3}`, with `quote` on both sides of text.

    Some templates write all values as text; those whose schema allows no text get its type.
    """

    def read(text: str, tools: Tools) -> list[FoundCall] | None:
        try:
            call = load_braces(text.strip(), quote)
        except _FAULTS:
            return None
        schema = parameters_of(call.name, tools)
        arguments = {
            name: typed(value, schema.member(name)) if _excludes_text(value, schema.member(name)) else value
            for name, value in call.arguments.items()
        }
        return [FoundCall(call.name, arguments)]

    return read


_NAME = re.compile(r"\s*([\w.\-]+)\s*")


def _excludes_text(value: Any, schema: Schema) -> bool:
    return isinstance(value, str) and "string" not in schema.kinds()


def _known(calls: list[FoundCall] | None, tools: Tools) -> list[FoundCall] | None:
    names = names_of(tools)
    return calls if calls and all(call.name in names for call in calls) else None


def _call(value: Any) -> FoundCall:
    """Return a call from an object, under any of the names that models use for its parts."""
    if not isinstance(value, dict):
        raise ValueError("a call must be an object")
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), "")
    arguments: Any = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
    return _made(name, arguments)


def _made(name: str, arguments: Any) -> FoundCall:
    """Return a call. Arguments that are JSON in a string are decoded; absent ones are an empty object."""
    if isinstance(arguments, str):
        arguments = load_json(arguments)
    if arguments is None:
        arguments = {}
    if not name or not isinstance(arguments, dict):
        raise ValueError("a call must have a name, and its arguments must be an object")
    return FoundCall(name, arguments)


def _plain_name(name: str, tools: Tools) -> str:
    """Return the name without namespace and index, unless a tool has the full name."""
    if name in names_of(tools):
        return name
    plain = name.removeprefix("functions.")
    stem, _, index = plain.rpartition(":")
    return stem if stem and index.isdecimal() else plain


def _only_arguments(text: str, name: str, tools: Tools) -> Any:
    """Return the only JSON value of a text. An empty text is incomplete if the tool needs arguments."""
    values = list(json_values(text))
    if len(values) > 1 or (not values and parameters_of(name, tools).requires_any):
        raise ValueError("the arguments of a call must be one value")
    return values[0] if values else {}
