"""Answers that a conversation ends with: the model continues the text or the thought of the last message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chaski.errors import TemplateError

__all__ = ["begun_field", "continued"]

_Messages = Sequence[Mapping[str, Any]]

# A letter for private use. Templates trim blanks, but not this letter.
_END = "\ue0c5"
_FIELDS = ("content", "thinking")


def begun_field(messages: _Messages) -> str | None:
    """Return the field of the last message that the answer continues: `content` or `thinking`.

    None if the conversation does not end with words of the assistant. A complete call is not continued.
    """
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    return next(
        (name for name in ("content", "thinking") if isinstance(last.get(name), str) and last[name]), None
    )


def continued(
    write: Callable[[_Messages, bool], str],
    messages: _Messages,
    field: str,
    thinking_tags: tuple[str, str] | None,
) -> str:
    """Return the text of a conversation up to the end of a field of its last message.

    `write` returns the text of a conversation, and begins an answer if its second argument is true. Some
    templates leave the last turn open then. Others close it, and the text after the field is cut off. Where a
    template does not show the field, the field follows the beginning of an answer.
    """
    *earlier, last = messages
    marked = [*earlier, {**last, field: last[field] + _END}]
    for begins in (True, False):
        try:
            before, end, after = write(marked, begins).rpartition(_END)
        except TemplateError:
            continue
        if end and not (begins and after):
            return before
    return _following(write(earlier, True), last, field, thinking_tags)


def _following(text: str, last: Mapping[str, Any], field: str, thinking_tags: tuple[str, str] | None) -> str:
    """Return the beginning of an answer that the last message gives."""
    opening, closing = thinking_tags or ("", "")
    is_thinking = bool(opening) and text.rstrip().endswith(opening.strip())
    if field == "thinking":
        return text + ("" if is_thinking or not opening else f"{opening}\n") + str(last[field])
    return text + (f"\n{closing}\n\n" if is_thinking else "") + str(last[field])
