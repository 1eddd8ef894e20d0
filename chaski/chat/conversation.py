"""`Conversation`: messages, with the other inputs of a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.formats import ChatFormat, Message, Think

__all__ = ["Conversation"]


class Conversation(Struct, frozen=True):
    """A conversation and the chat format that writes it."""

    chat_format: ChatFormat
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    think: Think
    variables: Mapping[str, Any]

    def with_messages(self, messages: Sequence[Message]) -> Conversation:
        """Return the conversation with other messages."""
        return replace(self, messages=messages)

    def render(self) -> str:
        """Return its text, with placeholders for images. Raises TemplateError, or OptionError."""
        return self.chat_format.render(self.messages, self.tools, self.think, self.variables)

    def has_begun_answer(self, text: str) -> bool:
        """Return whether `text` ends in the middle of an answer, so that all thoughts are complete."""
        said = str(self._last.get("content") or "").strip() if self._last.get("role") == "assistant" else ""
        return bool(said) and text.rstrip().endswith(said)

    @property
    def begun_thought(self) -> str:
        """The thought that the conversation ends in the middle of; empty if it does not end in one."""
        last = self._last
        is_thought = last.get("role") == "assistant" and not (last.get("content") or last.get("tool_calls"))
        return str(last.get("thinking") or "") if is_thought else ""

    @property
    def _last(self) -> Message:
        return self.messages[-1] if self.messages else {}
