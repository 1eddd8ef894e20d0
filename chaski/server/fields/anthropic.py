"""Fields of Anthropic's API."""

from __future__ import annotations

from chaski.options import MESSAGES as MESSAGES_PLACE
from chaski.options import OPTIONS, names_of
from chaski.server.fields.common import MODEL, RECEIPT, STREAM, THINKING
from chaski.server.fields.description import (
    FLAG,
    NUMBER,
    OBJECT,
    OBJECTS,
    TEXT_OR_OBJECTS,
    TEXTS,
    WHOLE,
    Field,
    FieldTable,
    ReadFields,
    ReadKinds,
    ReadParts,
    reads,
)

__all__ = ["ANSWERED_MESSAGES", "MESSAGES"]

_MARK = reads("type", "ttl")
# Citations that a client sends back add nothing to the text. A request for citations is reported as ignored.
_TEXT = reads("type", "text", "citations", cache_control=_MARK)
_IMAGE = reads("type", source=reads("type", "data", "media_type"), cache_control=_MARK)
_NO_CITATIONS = reads(neutral={"enabled": (False,)})
_SPOKEN = {
    "text": _TEXT,
    "image": _IMAGE,
    "search_result": reads(
        "type",
        "title",
        "source",
        content=reads("type", "text"),
        citations=_NO_CITATIONS,
        cache_control=_MARK,
    ),
    "tool_reference": reads("type", "tool_name", cache_control=_MARK),
}


def _document(content: ReadParts) -> ReadFields:
    # A document at a URL is reported as ignored as a whole.
    source = reads("type", "data", "media_type", "url", "file_id", content=content)
    return reads("type", "title", "context", source=source, citations=_NO_CITATIONS, cache_control=_MARK)


_QUOTED = ReadKinds({**_SPOKEN, "document": _document(ReadKinds(_SPOKEN))})
# `eager_input_streaming` changes only how soon the arguments of a call are sent.
_NOT_ENFORCED = {"strict": (False,), "defer_loading": (False,), "allowed_callers": (["direct"],)}
_TOOL = reads(
    "type",
    "name",
    "description",
    "input_schema",
    "eager_input_streaming",
    neutral=_NOT_ENFORCED,
    cache_control=_MARK,
)
_FIXED_TOOL = reads("type", "name", neutral=_NOT_ENFORCED, cache_control=_MARK)
_TOOLS = ReadKinds(
    {
        "custom": _TOOL,
        **dict.fromkeys(("bash", "text_editor", "memory"), _FIXED_TOOL),
        "computer": reads(
            "type",
            "name",
            "display_width_px",
            "display_height_px",
            neutral=_NOT_ENFORCED,
            cache_control=_MARK,
        ),
    },
    usual="custom",
)
_CHANGE = reads("type", tool=reads("type", "name", definition=_TOOLS))
_BLOCKS = ReadKinds(
    {
        **_QUOTED.kinds,
        "thinking": reads("type", "thinking", "signature"),
        "tool_use": reads("type", "id", "name", "input", cache_control=_MARK),
        "tool_result": reads("type", "tool_use_id", "is_error", content=_QUOTED, cache_control=_MARK),
        "tool_addition": _CHANGE,
        "tool_removal": _CHANGE,
        "compaction": reads("type", "content", tool_changes=_CHANGE),
    }
)
MESSAGES: FieldTable = {
    **MODEL,
    **THINKING,
    "messages": Field(
        OBJECTS,
        "the conversation: texts, thinking, tool calls and their results",
        True,
        reads("role", content=_BLOCKS),
    ),
    "system": Field(TEXT_OR_OBJECTS, "the system message", parts=_QUOTED),
    "tools": Field(OBJECTS, "functions that the model may call", parts=_TOOLS),
    "tool_choice": Field(
        OBJECT,
        "auto, any, none, or the tool to call; enforced",
        parts=reads("type", "name", "disable_parallel_tool_use"),
    ),
    "thinking": Field(
        OBJECT,
        "whether to think (`type`: enabled, adaptive or disabled), and with how many tokens at most "
        "(`budget_tokens`)",
        parts=reads("type", "budget_tokens"),
    ),
    "output_config": Field(
        OBJECT,
        "the effort of thinking (`effort`), and a schema that the answer follows (`format`)",
        parts=reads("effort", format=reads("type", "schema")),
    ),
    "cache_control": Field(
        OBJECT,
        "keeps the prompt cached for `ttl` (5m or 1h) after its last use; in a block or tool, up to its end",
        parts=_MARK,
    ),
    **RECEIPT,
    **{name: Field(NUMBER, OPTIONS[name].meaning) for name in names_of(MESSAGES_PLACE)},
    "stop_sequences": Field(TEXTS, "texts that end the answer"),
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
    "thread": Field(
        OBJECT,
        "`create` stores the conversation; `continue` continues from the answer `previous_message_id`",
        parts=reads("type", "previous_message_id"),
    ),
    "compaction": Field({}, "not supported; requests that set it fail"),
}

ANSWERED_MESSAGES: FieldTable = {
    **MESSAGES,
    "max_tokens": Field(WHOLE, "largest number of tokens of the answer", True),
}
