"""Fields of Anthropic's API."""

from __future__ import annotations

from chaski.server.fields.common import MODEL, PLAIN_OPTIONS, STREAM, THINKING
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
    Inner,
    Kinds,
    Shape,
    shape,
)

__all__ = ["ANSWERED_MESSAGES", "MESSAGES"]

# Citations that a client sends back say nothing that the text does not; asking for them is another thing.
_TEXT = shape("type", "text", "citations")
_IMAGE = shape("type", source=shape("type", "data", "media_type"))
_NO_CITATIONS = shape(neutral={"enabled": (False,)})
_SPOKEN = {
    "text": _TEXT,
    "image": _IMAGE,
    "search_result": shape("type", "title", "source", content=shape("type", "text"), citations=_NO_CITATIONS),
    "tool_reference": shape("type", "tool_name"),
}


def _document(content: Inner) -> Shape:
    source = shape("type", "data", "media_type", content=content)
    return shape("type", "title", "context", source=source, citations=_NO_CITATIONS)


_QUOTED = Kinds({**_SPOKEN, "document": _document(Kinds(_SPOKEN))})
# `eager_input_streaming` says how soon the arguments of a call come, and changes nothing in them.
_NOT_ENFORCED = {"strict": (False,), "defer_loading": (False,), "allowed_callers": (["direct"],)}
_TOOL = shape("type", "name", "description", "input_schema", "eager_input_streaming", neutral=_NOT_ENFORCED)
_FIXED_TOOL = shape("type", "name", neutral=_NOT_ENFORCED)
_TOOLS = Kinds(
    {
        "custom": _TOOL,
        **dict.fromkeys(("bash", "text_editor", "memory"), _FIXED_TOOL),
        "computer": shape("type", "name", "display_width_px", "display_height_px", neutral=_NOT_ENFORCED),
    },
    usual="custom",
)
_CHANGE = shape("type", tool=shape("type", "name", definition=_TOOLS))
_BLOCKS = Kinds(
    {
        **_QUOTED.kinds,
        "thinking": shape("type", "thinking", "signature"),
        "tool_use": shape("type", "id", "name", "input"),
        "tool_result": shape("type", "tool_use_id", "is_error", content=_QUOTED),
        "tool_addition": _CHANGE,
        "tool_removal": _CHANGE,
        "compaction": shape("type", "content", tool_changes=_CHANGE),
    }
)
MESSAGES: FieldTable = {
    **MODEL,
    **THINKING,
    "messages": Field(
        OBJECTS,
        "the conversation: texts, thinking, calls and their results",
        True,
        shape("role", content=_BLOCKS),
    ),
    "system": Field(TEXT_OR_OBJECTS, "what goes before it", parts=_QUOTED),
    "tools": Field(OBJECTS, "functions that the model may call", parts=_TOOLS),
    "tool_choice": Field(
        OBJECT,
        "auto, any, none, or the one to call; enforced",
        parts=shape("type", "name", "disable_parallel_tool_use"),
    ),
    "thinking": Field(OBJECT, "whether to think: enabled, adaptive or disabled", parts=shape("type")),
    "output_config": Field(
        OBJECT,
        "how much to think (`effort`), and a schema to follow (`format`)",
        parts=shape("effort", format=shape("type", "schema")),
    ),
    "temperature": PLAIN_OPTIONS["temperature"],
    "top_p": PLAIN_OPTIONS["top_p"],
    "top_k": Field(NUMBER, "keep that many of the most likely tokens"),
    "stop_sequences": Field(TEXTS, "texts that end the answer"),
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
    "thread": Field(
        OBJECT,
        "`create` keeps the conversation, `continue` goes on from the answer `previous_message_id`",
        parts=shape("type", "previous_message_id"),
    ),
    "compaction": Field({}, "not supported: an error where it is asked for"),
}

ANSWERED_MESSAGES: FieldTable = {
    **MESSAGES,
    "max_tokens": Field(WHOLE, "tokens of the answer at most", True),
}
