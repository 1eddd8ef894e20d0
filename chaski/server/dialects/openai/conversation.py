"""Conversion of the messages and tools of chat completions to Ollama's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaski.chat.arguments import read_arguments
from chaski.errors import OptionError, UnsupportedError
from chaski.server.dialects.common.custom import PARAMETERS, custom_description
from chaski.server.dialects.common.documents import read_file, unread
from chaski.server.dialects.common.images import Spoken, read_data_url, read_video_part
from chaski.server.dialects.common.tools import function_tool
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import InnerJson

__all__ = ["OpenAIConversation", "call_of", "chosen", "custom_names", "read_tools"]


class OpenAIConversation:
    """The messages of a request in Ollama's form. Raises OptionError or UnsupportedError."""

    def __init__(self, fields: Fields, ignored: Ignored) -> None:
        self._ignored = ignored
        self._names: dict[str, str] = {}  # names of calls by their ids
        self._inner = InnerJson()
        self.messages = [self._message(message) for message in fields.objects("messages")]

    def _message(self, fields: Fields) -> dict[str, Any]:
        role = {"developer": "system", "function": "tool"}.get(fields.text("role"), fields.text("role"))
        if role not in ("system", "user", "assistant", "tool"):
            raise OptionError(f"role {role!r:.40} must be system, developer, user, assistant or tool")
        found: dict[str, Any] = {"role": role, **self._content(fields)}
        if thinking := fields.text("reasoning", "reasoning_content"):
            found["thinking"] = thinking
        calls = [_read_call(call, self._inner) for call in fields.objects("tool_calls")]
        if calls:
            found["tool_calls"] = calls
            self._names |= {call["id"]: call["function"]["name"] for call in calls}
        if call_id := fields.text("tool_call_id"):
            name = fields.text("name") or self._names.get(call_id, "")
            found |= {"tool_call_id": call_id, "tool_name": name}
        elif role == "tool" and fields.has("name"):
            found["tool_name"] = fields.text("name")
        return found

    def _content(self, fields: Fields) -> dict[str, Any]:
        """Return the text of a message with its images and documents."""
        spoken = Spoken()
        if not isinstance(fields.data.get("content"), list):
            spoken.add_text(fields.text("content"))
            return spoken.fields
        for part in fields.objects("content"):
            match part.text("type"):
                case "text" | "refusal" as kind:
                    spoken.add_text(part.text(kind))
                case "image_url":
                    spoken.add_image(_read_image(part))
                case "file":
                    spoken.add_text(self._file(Fields(part.mapping("file"), "file")))
                case "video_url" | "video" as kind:
                    spoken.add_image(read_video_part(part, kind))
                case "input_video":
                    name = "video_url" if part.has("video_url") else "input_video"
                    spoken.add_image(read_video_part(part, name))
                case "input_audio" | "audio" as kind:
                    raise UnsupportedError(
                        f"content of type {kind!r:.40} is not supported by this version; use text, "
                        "image_url, video_url or a text file"
                    )
                case kind:
                    self._ignored.add("content", kind)
        return spoken.fields

    def _file(self, file: Fields) -> str:
        title = file.text("filename")
        if not file.has("file_data"):
            return unread("file_id", title, self._ignored)
        return read_file(file.text("file_data"), "", title, "file.file_data", self._ignored)


def read_tools(fields: Fields, ignored: Ignored) -> Iterator[dict[str, Any]]:
    """Yield the tools in Ollama's form, and record those that are not functions as ignored."""
    for tool in fields.objects("tools"):
        if (function := function_tool(tool)) is not None:
            yield function
        elif (kind := tool.text("type")) == "custom":
            yield _custom(Fields(tool.mapping("custom"), "custom"), ignored)
        else:
            ignored.add("tool", kind)


def custom_names(fields: Fields) -> frozenset[str]:
    """Return the names of custom tools, whose calls contain plain text."""
    customs = [Fields(tool.mapping("custom"), "custom") for tool in fields.objects("tools")]
    return frozenset(custom.text("name") for custom in customs if custom.has("name"))


def chosen(choice: Any) -> tuple[str, set[str] | None]:
    """Return the choice of tools in a request, and the names of the allowed tools; None for all tools."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, "auto", "none", "required"):
            raise OptionError(f"tool_choice {choice!r:.40} must be none, auto, required or a function")
        return choice or "auto", None
    fields = Fields(choice, "tool_choice")
    if fields.text("type") != "allowed_tools":
        return _named(fields), None
    allowed = Fields(fields.mapping("allowed_tools"), "tool_choice.allowed_tools")
    mode = allowed.text("mode", default="auto")
    if mode not in ("auto", "required"):
        raise OptionError(f"tool_choice.allowed_tools.mode {mode!r:.40} must be auto or required")
    return mode, {_named(tool) for tool in allowed.objects("tools")}


def call_of(call_id: str, name: str, arguments: str, inner: InnerJson) -> dict[str, Any]:
    """Return a call in Ollama's form. Arguments that are not a JSON object stay text."""
    return {"id": call_id, "function": {"name": name, "arguments": read_arguments(arguments, inner.load)}}


def _named(fields: Fields) -> str:
    kind = "custom" if fields.has("custom") else "function"
    name = Fields(fields.mapping(kind), f"{fields.where}.{kind}").text("name")
    if not name:
        raise OptionError(f"{fields.where}.{kind}.name is missing")
    return name


def _custom(custom: Fields, ignored: Ignored) -> dict[str, Any]:
    name = custom.text("name")
    if not name:
        raise OptionError("a tool has no name")
    format = Fields(custom.mapping("format"), "custom.format")
    grammar = Fields(format.mapping("grammar"), "custom.format.grammar")
    description = custom_description(name, custom.text("description"), grammar, ignored)
    described: Mapping[str, Any] = {"name": name, "description": description, "parameters": dict(PARAMETERS)}
    return {"type": "function", "function": described}


def _read_image(part: Fields) -> bytes:
    """Return the image of a part, whose URL is given directly or in an object."""
    if isinstance(part.data.get("image_url"), str):
        return read_data_url(part.text("image_url"), "image_url")
    return read_data_url(Fields(part.mapping("image_url"), "image_url").text("url"), "image_url.url")


def _read_call(fields: Fields, inner: InnerJson) -> dict[str, Any]:
    if fields.has("custom"):
        custom = Fields(fields.mapping("custom"), "custom")
        function = {"name": custom.text("name"), "arguments": {"input": custom.text("input")}}
        return {"id": fields.text("id"), "function": function}
    function_fields = Fields(fields.mapping("function"), "function")
    name, arguments = function_fields.text("name"), function_fields.text("arguments")
    return call_of(fields.text("id"), name, arguments, inner)
