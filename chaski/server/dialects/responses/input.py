"""Conversion of the Responses API's items to messages in Ollama's form. A turn may span several items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from chaski.errors import OptionError, UnsupportedError
from chaski.server.dialects.common.documents import read_file, unread
from chaski.server.dialects.common.images import Spoken, read_data_url, read_video_part
from chaski.server.dialects.openai.conversation import call_of
from chaski.server.dialects.responses.tools import Tool, form_of_call, read_call, read_tools
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import InnerJson, dump_text

__all__ = ["FindItem", "ResponsesConversation"]

FindItem = Callable[[str], Mapping[str, Any]]
"""Function that returns an item of an earlier response by its id. Raises ResponseNotFoundError."""

_OUTPUTS = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "tool_search_output",
)


class ResponsesConversation:
    """The messages of items that follow earlier messages.

    messages  messages of the items
    tools     tools that the items add: results of a search, and additions during the conversation
    """

    def __init__(self, earlier: Sequence[Mapping[str, Any]], ignored: Ignored, find_item: FindItem) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools: list[Tool] = []
        self._ignored = ignored
        self._find_item = find_item
        calls = [call for message in earlier for call in message.get("tool_calls", ())]
        self._names = {call["id"]: call["function"]["name"] for call in calls}
        self._inner = InnerJson()
        self._references: set[str] = set()  # ids of referenced items
        self._said: dict[str, Any] | None = None  # the model's turn, to which further items may belong

    def read(self, items: Iterator[Fields]) -> None:
        """Read all items. Raises OptionError or UnsupportedError."""
        for item in items:
            self._read(item)
        for message in self.messages:
            if "thinking" in message:
                message["thinking"] = "".join(message["thinking"])

    def _read(self, item: Fields) -> None:
        kind = item.text("type", default="message" if item.has("role") else "item_reference")
        match kind:
            case "message":
                self._message(item)
            case "reasoning":
                self._reasoning(item)
            case "item_reference":
                self._read(Fields(self._referenced(item.text("id")), item.where))
            case "additional_tools":
                self.tools += read_tools(item, self._ignored)
            case "mcp_call" | "code_interpreter_call" | "file_search_call" if found := _done_elsewhere(
                item, self._inner
            ):
                self._called(found[0])
                self._result(found[0]["id"], {"content": found[1]})
            case "compaction_trigger":
                raise UnsupportedError("compaction is not supported by this server; send a shorter input")
            case _ if form_of_call(kind):
                self._called(read_call(item, self._inner))
            case _ if kind in _OUTPUTS:
                self._result(item.text("call_id", "id"), self._output(item))
            case _:
                self._ignored.add("item", kind)

    def _referenced(self, item_id: str) -> Mapping[str, Any]:
        """Return an item of an earlier response. As in OpenAI's API, it may be referenced only once."""
        if item_id in self._references:
            raise OptionError(
                f"Duplicate item found with id {item_id:.80}. Remove duplicate items from input."
            )
        self._references.add(item_id)
        return self._find_item(item_id)

    def _message(self, item: Fields) -> None:
        if item.text("role") == "assistant":
            if self._said is None or self._said["content"] or "tool_calls" in self._said:
                self._begin()
            self._turn.update(self._content(item, "content"))
        else:
            self.messages.append({"role": _role(item), **self._content(item, "content")})
            self._said = None

    def _reasoning(self, item: Fields) -> None:
        thinking = _thinking(item)
        if item.has("encrypted_content"):
            self._ignored.add("item", "reasoning.encrypted_content")
        if not thinking:
            return
        if self._said is None or self._said.keys() > {"role", "content", "thinking"} or self._said["content"]:
            self._begin()
        self._turn.setdefault("thinking", []).append(thinking)

    def _called(self, call: dict[str, Any]) -> None:
        self._names[call["id"]] = call["function"]["name"]
        self._turn.setdefault("tool_calls", []).append(call)

    def _result(self, call_id: str, content: dict[str, Any]) -> None:
        if call_id not in self._names:
            raise OptionError(f"No tool call found for function call output with call_id {call_id:.80}.")
        named = {"tool_call_id": call_id, "tool_name": self._names[call_id]}
        self.messages.append({"role": "tool", **content, **named})
        self._said = None

    def _output(self, item: Fields) -> dict[str, Any]:
        """Return the fields of a tool's message that contain the output of a call."""
        match item.text("type"):
            case "shell_call_output":
                return {"content": dump_text([dict(part.data) for part in item.objects("output")])}
            case "apply_patch_call_output":
                return {"content": "\n".join(filter(None, (item.text("status"), item.text("output"))))}
            case "tool_search_output":
                found = list(read_tools(item, self._ignored))
                self.tools += found
                return {"content": dump_text([tool.function["function"] for tool in found])}
            case _:
                return self._content(item, "output")

    @property
    def _turn(self) -> dict[str, Any]:
        return self._said if self._said is not None else self._begin()

    def _begin(self) -> dict[str, Any]:
        self._said = {"role": "assistant", "content": ""}
        self.messages.append(self._said)
        return self._said

    def _content(self, fields: Fields, name: str) -> dict[str, Any]:
        """Return the text of an item with its images and documents."""
        spoken = Spoken()
        if not isinstance(fields.data.get(name), list):
            spoken.add_text(fields.text(name))
            return spoken.fields
        for part in fields.objects(name):
            match part.text("type"):
                case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
                    spoken.add_text(part.text("text"))
                case "refusal":
                    spoken.add_text(part.text("refusal"))
                case "input_image" if not part.has("file_id"):
                    spoken.add_image(read_data_url(part.text("image_url"), "image_url"))
                case "input_video":
                    spoken.add_image(read_video_part(part, "video_url"))
                case "input_file":
                    spoken.add_text(self._file(part))
                case "input_image" | "input_audio" as kind:
                    raise UnsupportedError(f"this {kind} is not supported; send images as data URLs")
                case kind:
                    self._ignored.add("content", kind)
        return spoken.fields

    def _file(self, part: Fields) -> str:
        title = part.text("filename")
        if not part.has("file_data"):
            return unread("file_id" if part.has("file_id") else "file_url", title, self._ignored)
        return read_file(part.text("file_data"), "", title, "input_file.file_data", self._ignored)


def _role(fields: Fields) -> str:
    role = {"developer": "system"}.get(fields.text("role"), fields.text("role"))
    if role not in ("system", "user"):
        raise OptionError(f"role {role!r:.40} must be system, developer, user or assistant")
    return role


def _thinking(fields: Fields) -> str:
    """Return the full text of a reasoning item, or else its summary."""
    parts = list(fields.objects("content")) or list(fields.objects("summary"))
    return "\n".join(part.text("text") for part in parts)


def _done_elsewhere(item: Fields, inner: InnerJson) -> tuple[dict[str, Any], str] | None:
    """Return a call that the provider's server ran, and its result; None if the item has no result."""
    id = item.text("id")
    match item.text("type"):
        case "mcp_call" if item.has("output") or item.has("error"):
            error = dump_text(item.data.get("error"))
            call = call_of(id, item.text("name"), item.text("arguments"), inner)
            return call, item.text("output") if item.has("output") else error
        case "code_interpreter_call" if item.has("outputs"):
            logs = "\n".join(each.text("logs") for each in item.objects("outputs"))
            return _call(id, "code_interpreter", code=item.text("code")), logs
        case "file_search_call" if item.has("results"):
            texts = "\n".join(each.text("text") for each in item.objects("results"))
            return _call(id, "file_search", queries=item.texts("queries")), texts
        case _:
            return None


def _call(call_id: str, name: str, **arguments: object) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}
