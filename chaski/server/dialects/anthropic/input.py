"""Conversion of Anthropic's messages to Ollama's form: blocks become texts, images, calls and results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaski.chat.arguments import read_arguments
from chaski.chat.marks import Mark
from chaski.errors import OptionError
from chaski.server.dialects.anthropic.marks import check_marks, seconds_of, top_seconds
from chaski.server.dialects.anthropic.tools import read_tool
from chaski.server.dialects.common.documents import document, read_file, unread
from chaski.server.dialects.common.images import Spoken, read_base64
from chaski.server.dialects.common.tools import require_distinct
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import InnerJson

__all__ = ["AnthropicConversation"]

_ACCOUNTING = "x-anthropic-billing-header:"
_ERRORS = ("error", "<tool_use_error>")
_GAP = "\n\n"


class AnthropicConversation:
    """The messages of a request in Ollama's form, with its tools and marks. Raises OptionError.

    tools  tools of the request, after additions and removals in its messages
    marks  positions up to which the prompt stays cached, by the numbers of messages
    """

    def __init__(self, fields: Fields, ignored: Ignored) -> None:
        self._ignored = ignored
        self._names: dict[str, str] = {}  # names of calls by their ids
        self._inner = InnerJson()
        self._tools: dict[str, dict[str, Any]] = {}
        self._removed: set[str] = set()
        self.marks: list[Mark] = []
        check_marks(fields)
        tools = list(fields.objects("tools"))
        require_distinct(filter(None, map(self._add_tool, tools)))
        of_tools = max(map(seconds_of, tools), default=0)
        self.messages = self._system(fields)
        # Templates write tools before or after the system message, so a mark on a tool is set after both.
        self._mark(len(self.messages), 0, of_tools)
        for turn in self._turns(fields):
            self.messages.append(turn)
        if (seconds := top_seconds(fields)) and self.messages:
            self._mark(len(self.messages) - 1, len(self.messages[-1]["content"]), seconds)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools at the end of the conversation."""
        return [tool for name, tool in self._tools.items() if name not in self._removed]

    def _add_tool(self, fields: Fields) -> dict[str, Any] | None:
        if tool := read_tool(fields, self._ignored):
            self._tools[tool["function"]["name"]] = tool
        return tool

    def _mark(self, message: int, characters: int, seconds: int) -> None:
        if seconds:
            self.marks.append(Mark(message, characters, seconds))

    def _system(self, fields: Fields) -> list[dict[str, Any]]:
        system = fields.data.get("system")
        if system is None or isinstance(system, str):
            text = _lasting(system or "")
            return [{"role": "system", "content": text}] if text else []
        texts: list[str] = []
        length = 0
        for block in fields.objects("system"):
            spoken = Spoken()
            self._speak(spoken, block)
            if spoken.images:
                raise OptionError("system must be text; send images in messages")
            if text := _lasting(spoken.text):
                length += len(text) + (len(_GAP) if texts else 0)
                texts.append(text)
            self._mark(0, length, seconds_of(block))
        return [{"role": "system", "content": _GAP.join(texts)}] if texts else []

    def _turns(self, fields: Fields) -> Iterator[dict[str, Any]]:
        for message in fields.objects("messages"):
            role = message.text("role")
            if role not in ("user", "assistant", "system"):
                raise OptionError(f"role {role!r:.40} must be user or assistant")
            if isinstance(message.data.get("content"), list):
                yield from self._blocks(role, message)
            else:
                yield {"role": role, "content": message.text("content")}

    def _blocks(self, role: str, message: Fields) -> Iterator[dict[str, Any]]:
        """Yield the messages that the blocks of a message form: results of tools, then the text and calls."""
        said: dict[str, Any] = {"role": role, "content": ""}
        spoken, calls, others = Spoken(), [], 0
        thoughts: list[str] = []
        marks: list[tuple[int | None, int]] = []  # characters of the text; None after the calls
        for block in message.objects("content"):
            seconds = seconds_of(block)
            match block.text("type"):
                case "thinking":
                    thoughts.append(block.text("thinking"))
                case "tool_use":
                    calls.append(self._call(block))
                    marks.append((None, seconds))
                case "tool_result":
                    others += 1
                    result = self._result(block)
                    self._mark(len(self.messages), len(result["content"]), seconds)
                    yield result
                case "tool_addition" | "tool_removal":
                    others += 1
                    self._change_tools(block)
                case _:
                    self._speak(spoken, block)
                    marks.append((spoken.length, seconds))
        said |= spoken.fields
        if thoughts:
            said["thinking"] = "".join(thoughts)
        if calls:
            said["tool_calls"] = calls
        if spoken.length or spoken.images or calls or not others:
            own = len(self.messages)
            for characters, seconds in marks:
                self._mark(own + (characters is None), characters or 0, seconds)
            yield said

    def _call(self, block: Fields) -> dict[str, Any]:
        call_id = block.text("id")
        if not call_id:
            raise OptionError("tool_use block missing required 'id' field")
        self._names[call_id] = block.text("name")
        function = {
            "name": block.text("name"),
            "arguments": read_arguments(block.data.get("input"), self._inner.load),
        }
        return {"id": call_id, "function": function}

    def _result(self, block: Fields) -> dict[str, Any]:
        call_id = block.text("tool_use_id")
        spoken = Spoken()
        self._speak_content(spoken, block)
        # Templates cannot mark a result as an error, so its text must do it.
        if block.flag("is_error", False) and not spoken.begins_with(_ERRORS):
            spoken.add_prefix("Error: ")
        named = {"tool_call_id": call_id, "tool_name": self._names.get(call_id, "")}
        return {"role": "tool", **spoken.fields, **named}

    def _change_tools(self, block: Fields) -> None:
        """Add or remove a tool for the rest of the conversation."""
        tool = Fields(block.mapping("tool"), "tool")
        if block.text("type") == "tool_removal":
            self._removed.add(tool.text("name"))
        elif tool.text("type") == "tool_definition":
            definition = Fields(tool.mapping("definition"), "definition")
            self._add_tool(definition)
            self._removed.discard(definition.text("name"))
        else:
            self._removed.discard(tool.text("name"))

    def _speak_content(self, spoken: Spoken, block: Fields) -> None:
        """Add the content of a block, which is text or a list of blocks."""
        if isinstance(block.data.get("content"), list):
            for part in block.objects("content"):
                self._speak(spoken, part)
        else:
            spoken.add_text(block.text("content"))

    def _speak(self, spoken: Spoken, block: Fields) -> None:
        """Add a block that contains text or an image, and record other blocks as ignored."""
        match block.text("type"):
            case "text":
                spoken.add_text(block.text("text"))
            case "image":
                spoken.add_image(_read_image(Fields(block.mapping("source"), "source")))
            case "document":
                self._speak_document(spoken, block)
            case "search_result":
                texts = [part.text("text") for part in block.objects("content")]
                spoken.add_text(document("\n".join(texts), block.text("title"), block.text("source")))
            case "tool_reference":
                spoken.add_text(block.text("tool_name"))
            case "compaction" if block.has("content"):
                spoken.add_text(document(block.text("content"), "summary of what was said before"))
                for change in block.objects("tool_changes"):
                    self._change_tools(change)
            case kind:
                self._ignored.add("block", kind)

    def _speak_document(self, spoken: Spoken, block: Fields) -> None:
        source = Fields(block.mapping("source"), "source")
        title, context = block.text("title"), block.text("context")
        match source.text("type"):
            case "text":
                spoken.add_text(document(source.text("data"), title, context))
            case "content" if isinstance(source.data.get("content"), str):
                spoken.add_text(document(source.text("content"), title, context))
            case "content":
                self._speak_content(spoken, source)
            case "base64":
                media_type = source.text("media_type")
                spoken.add_text(
                    read_file(source.text("data"), media_type, title, "source.data", self._ignored)
                )
            case kind:
                spoken.add_text(unread(kind or "unknown", title, self._ignored))


def _lasting(system: str) -> str:
    """Return a system text without Claude Code's accounting line.

    The line is not meant for the model. It changes with each request, so nothing after it could be cached.
    """
    first, _, rest = system.partition("\n")
    return rest.lstrip("\n") if first.lstrip().lower().startswith(_ACCOUNTING) else system


def _read_image(source: Fields) -> bytes:
    if (kind := source.text("type")) != "base64":
        raise OptionError(f"image source {kind!r:.40} is not supported, please use base64 data instead")
    return read_base64(source.data.get("data"), "source.data")
