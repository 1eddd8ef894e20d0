"""Messages and tools as Ollama passes them to templates: Go values, printed as their types print.

The names of fields and the rules are those of Ollama's `template` and `api` packages. Numbers in arguments
are float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from chaski.errors import TemplateError
from chaski.text.template.go import types
from chaski.text.template.go.values import Map, Slice, Value, from_json, from_text, sorted_items


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """A message whose content contains tags at the places of images."""

    role: str
    content: str
    fields: Mapping[str, Value]


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[TemplateMessage]:
    """Read messages of the API. `images` of a message are the tags that stand for them in its content."""
    return [_message(message) for message in messages]


def collate(messages: Iterable[TemplateMessage]) -> list[TemplateMessage]:
    """Merge adjacent messages of one role, separated by a blank line; tool results stay separate.

    The other fields, such as calls, are those of the first message, as in Ollama.
    """
    collated: list[TemplateMessage] = []
    for role, neighbours in groupby(messages, lambda message: message.role):
        together = list(neighbours)
        if role == "tool":
            collated += together
        else:
            content = "\n\n".join(message.content for message in together)
            collated.append(replace(together[0], content=content))
    return collated


def system_text(messages: Iterable[TemplateMessage]) -> str:
    """Join all system messages, separated by blank lines."""
    return "\n\n".join(message.content for message in messages if message.role == "system")


def as_value(messages: Iterable[TemplateMessage]) -> Slice:
    """Return the messages as a template sees them."""
    return Slice(
        [
            types.MessageFields({"Role": message.role, "Content": message.content, **message.fields})
            for message in messages
        ]
    )


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> types.ToolList:
    """Tools of the API. Fields that the reference does not know are hidden from templates."""
    return types.ToolList(is_nil=True) if tools is None else types.ToolList([_tool(tool) for tool in tools])


def _message(message: Mapping[str, Any]) -> TemplateMessage:
    tags = _texts(message.get("images") or None)
    fields: dict[str, Value] = {
        "Thinking": _text(message, "thinking"),
        "Images": tags,
        "ToolCalls": _list([_call(call) for call in message.get("tool_calls") or ()]),
        "ToolName": _text(message, "tool_name"),
        "ToolCallID": _text(message, "tool_call_id"),
    }
    return TemplateMessage(_text(message, "role").lower(), _text(message, "content"), fields)


def _call(call: Mapping[str, Any]) -> types.ToolCallStruct:
    function = _mapping(call, "function")
    named: dict[str, Value] = {
        "Index": int(function.get("index") or 0),
        "Name": _text(function, "name"),
        "Arguments": _arguments(function.get("arguments")),
    }
    return types.ToolCallStruct({"ID": _text(call, "id"), "Function": types.ToolCallFunction(named)})


def _arguments(arguments: object) -> types.ArgumentMap:
    if arguments is None:
        return types.ArgumentMap({}, is_nil=True)
    value = from_json(arguments)
    if not isinstance(value, Map):
        raise TemplateError("the arguments of a tool call must be a JSON object")
    return types.ArgumentMap(value.items)


def _tool(tool: Mapping[str, Any]) -> types.ToolStruct:
    function = _mapping(tool, "function")
    named: dict[str, Value] = {
        "Name": _text(function, "name"),
        "Description": _text(function, "description"),
        "Parameters": _parameters(_mapping(function, "parameters")),
    }
    return types.ToolStruct(
        {
            "Type": _text(tool, "type"),
            "Items": from_json(tool.get("items")),
            "Function": types.ToolFunction(named),
        }
    )


def _parameters(schema: Mapping[str, Any]) -> types.Parameters:
    properties = _properties(schema)
    return types.Parameters(
        {
            "Type": _text(schema, "type"),
            "Defs": from_json(schema.get("$defs")),
            "Items": from_json(schema.get("items")),
            "Required": _texts(schema.get("required")),
            "Properties": types.Properties(sorted_items(properties or {}), is_nil=properties is None),
        }
    )


def _property(schema: Mapping[str, Any]) -> types.Property:
    properties = _properties(schema)
    named = schema.get("type")
    names = _texts([named] if isinstance(named, str) else named)
    return types.Property(
        {
            "AnyOf": _list([_property(choice) for choice in schema.get("anyOf") or ()]),
            "Type": types.PropertyType(names.items, names.is_nil),
            "Items": from_json(schema.get("items")),
            "Description": _text(schema, "description"),
            "Enum": _list([from_json(item) for item in schema.get("enum") or ()]),
            "Properties": None if properties is None else types.InnerProperties(properties),
            "Required": _texts(schema.get("required")),
        }
    )


def _properties(schema: Mapping[str, Any]) -> dict[str, Value] | None:
    if schema.get("properties") is None:
        return None
    return {from_text(name): _property(item) for name, item in _mapping(schema, "properties").items()}


def _list(items: Sequence[Value]) -> Slice:
    return Slice(items, is_nil=not items)


def _texts(texts: Sequence[str] | None) -> Slice:
    return Slice([from_text(text) for text in texts or ()], is_nil=texts is None)


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise TemplateError(f"{key!r} must be text here, not {type(value).__name__}: {value!r:.60}")
    return from_text(value or "")


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise TemplateError(f"{key!r} must be an object here, not {type(value).__name__}: {value!r:.60}")
    return value or {}
