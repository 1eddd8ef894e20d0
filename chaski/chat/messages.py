"""Conversations and tools as callers give them: mappings, or objects of other libraries, all checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, TypeAlias

from msgspec import Struct, structs

from chaski.chat.answer import Answer
from chaski.chat.function_tools import function_tool
from chaski.errors import OptionError

__all__ = ["Tool", "is_conversation", "message_list", "require_content", "tool_list"]

_FORM = 'a list of messages such as {"role": "user", "content": "hello"}'
_CALL = '{"function": {"name": "add", "arguments": {"a": 1}}}'
_TOOL = '{"type": "function", "function": {"name": "add", "parameters": {"type": "object", ...}}}'

Tool: TypeAlias = Mapping[str, Any] | Callable[..., Any]
"""A tool in the format of OpenAI's API, or a function: its type hints and docstring are the description."""


def message_list(messages: object) -> list[Mapping[str, Any]]:
    """Return a conversation; each message has a role, and a text or parts as content. Raises OptionError.

    A message is a mapping, an `Answer`, or an object with fields: a Pydantic model, such as a message of the
    packages `openai` and `ollama`, a dataclass or a msgspec Struct.
    """
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        raise OptionError(f"the conversation is {messages!r:.80}; it must be {_FORM}")
    return [_message(message, f"message {number}") for number, message in enumerate(messages)]


def is_conversation(prompt: object) -> bool:
    """Return whether a prompt is a list of messages, and neither a text nor a list of ids."""
    if not isinstance(prompt, list | tuple):
        return False
    return any(_as_mapping(each) is not None for each in prompt)


def require_content(messages: list[Mapping[str, Any]], has_images: bool) -> None:
    """Raise OptionError for an empty conversation, and for a message without content.

    has_images: whether the last message has images that it does not name itself.

    An assistant's message may consist of tool calls or thoughts, and any message of images.
    """
    if not messages:
        raise OptionError(f"the conversation is empty; it must be {_FORM}")
    for number, message in enumerate(messages):
        is_last = number == len(messages) - 1
        says_otherwise = message["role"] == "assistant" and (
            message.get("tool_calls") or message.get("thinking")
        )
        if message.get("content") in (None, [], ()) and not (
            says_otherwise or message.get("images") or (is_last and has_images)
        ):
            raise OptionError(
                f"message {number} (role {message['role']!r:.40}) has no content; give it a text, which may "
                "be empty. Only an assistant's message with tool_calls needs none"
            )


def tool_list(tools: object) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of a conversation, each as a mapping. Raises OptionError."""
    if tools is None:
        return ()
    if not isinstance(tools, Iterable) or isinstance(tools, str | bytes | Mapping):
        raise OptionError(f"the tools are {tools!r:.80}; they must be a list of tools such as {_TOOL}")
    found = []
    for number, tool in enumerate(tools):
        mapping = _as_mapping(tool)
        if mapping is None and callable(tool) and not isinstance(tool, type):
            mapping = function_tool(tool)
        if mapping is not None and "name" in mapping and "function" not in mapping:
            mapping = {"type": "function", "function": mapping}
        function = None if mapping is None else mapping.get("function")
        if mapping is None or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise OptionError(f"tool {number} is {tool!r:.80}; it must be a function, or like {_TOOL}")
        found.append(mapping)
    return tuple(found)


def _message(message: object, name: str) -> Mapping[str, Any]:
    found = _as_mapping(message)
    if found is None:
        raise OptionError(f"{name} is {message!r:.80}; the conversation must be {_FORM}")
    if not isinstance(found.get("role"), str):
        raise OptionError(f"{name} has no role; the conversation must be {_FORM}")
    if not isinstance(content := found.get("content"), str | list | tuple | None):
        raise OptionError(f"the content of {name} is {content!r:.80}; it must be a text")
    if not isinstance(thinking := found.get("thinking"), str | None):
        raise OptionError(f"the thinking of {name} is {thinking!r:.80}; it must be a text")
    if found.get("tool_calls") is None:
        return found
    return {**found, "tool_calls": _calls(found["tool_calls"], name)}


def _calls(calls: object, name: str) -> list[Mapping[str, Any]]:
    """Return the tool calls of a message, each with its name and arguments in the field `function`."""
    if not isinstance(calls, list | tuple):
        raise OptionError(
            f"the tool_calls of {name} are {calls!r:.80}; they must be a list such as [{_CALL}]"
        )
    found: list[Mapping[str, Any]] = []
    for number, call in enumerate(calls):
        mapping = _as_mapping(call)
        function = None if mapping is None else _as_mapping(mapping.get("function", mapping))
        if mapping is None or function is None or not isinstance(function.get("name"), str):
            raise OptionError(f"tool call {number} of {name} is {call!r:.80}; it must be like {_CALL}")
        found.append({**(mapping if "function" in mapping else {}), "function": function})
    return found


def _as_mapping(value: object) -> Mapping[str, Any] | None:
    """Return the fields of an object that has named ones, without those that are None; else None."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, Answer):
        return value.message
    if isinstance(value, Struct):
        return structs.asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, type):
        return None
    if callable(dump := getattr(value, "model_dump", None)):
        return dict(dump(exclude_none=True))
    if hasattr(type(value), "__fields__") and callable(dump := getattr(value, "dict", None)):  # Pydantic 1
        return dict(dump(exclude_none=True))
    return None
