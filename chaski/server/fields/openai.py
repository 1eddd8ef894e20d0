"""Fields of OpenAI's API."""

from __future__ import annotations

from chaski.server.fields.common import KEEP_ALIVE, MODEL, PLAIN_OPTIONS, STREAM, THINKING, TRUNCATE
from chaski.server.fields.description import (
    FLAG,
    INPUTS,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXT_OR_OBJECT,
    WHOLE,
    Field,
    FieldTable,
    Kinds,
    Shape,
    shape,
)

__all__ = ["CHAT", "COMPLETION", "EMBEDDINGS", "MESSAGES", "TOOLS"]

_STREAM_OPTIONS = Field(
    OBJECT,
    "`include_usage`: whether a stream ends with counts; no padding is ever included",
    parts=shape("include_usage", "include_obfuscation"),
)

_COMMON: FieldTable = {
    **MODEL,
    **THINKING,
    **TRUNCATE,
    **PLAIN_OPTIONS,
    **KEEP_ALIVE,
    "max_tokens": Field(WHOLE, "tokens of the answer at most; -1: as many as the context holds"),
    "max_completion_tokens": Field(WHOLE, "the same; it goes first"),
    "n": Field(WHOLE, "how many answers, 1 to 16"),
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
    "stream_options": _STREAM_OPTIONS,
    "response_format": Field(
        OBJECT,
        "text, json_object, or a json_schema that the answer follows",
        parts=shape("type", json_schema=shape("schema", "name", "strict")),
    ),
}

# The model's template gets all of a function, but no grammar holds calls to its schema.
_FUNCTION = Shape({}, {"strict": (False,)}, is_open=True)
_CUSTOM = shape("name", "description", format=shape("type", grammar=shape("syntax", "definition")))
_TOOLS_OF_CHAT = Kinds(
    {
        "function": Shape({"function": _FUNCTION}, {"strict": (False,)}, is_open=True),
        "custom": shape("type", custom=_CUSTOM),
    },
    usual="function",
)
_NAMED_TOOL = shape("type", function=shape("name"), custom=shape("name"))
_TOOL_CHOICE = Shape({**_NAMED_TOOL.inner, "allowed_tools": shape("mode", tools=_NAMED_TOOL)})
TOOLS: FieldTable = {
    "tools": Field(OBJECTS, "functions that the model may call", parts=_TOOLS_OF_CHAT),
    "tool_choice": Field(
        TEXT_OR_OBJECT, "none, auto, required, or the one to call; enforced", parts=_TOOL_CHOICE
    ),
    "parallel_tool_calls": Field(FLAG, "whether there may be more calls than one; true by default"),
}

# Clients send back the `index` that calls in streams have.
_CALL = shape("id", "type", "index", function=shape("name", "arguments"), custom=shape("name", "input"))
_PARTS = Kinds(
    {
        "text": shape("type", "text"),
        "refusal": shape("type", "refusal"),
        "image_url": shape("type", image_url=shape("url", neutral={"detail": ("auto",)})),
        "file": shape("type", file=shape("filename", "file_data", "file_id")),
    }
)
_SAID = {
    **dict.fromkeys(("role", "reasoning", "reasoning_content", "tool_call_id")),
    "content": _PARTS,
    "tool_calls": _CALL,
}
# Citations that a client sends back say nothing that the text does not.
_MESSAGE = Shape(_SAID | {"annotations": None})
_RESULT = Shape(_SAID | {"name": None})
MESSAGES = Kinds(
    {
        **dict.fromkeys(("system", "developer", "user", "assistant"), _MESSAGE),
        **dict.fromkeys(("tool", "function"), _RESULT),
    },
    tag="role",
)
CHAT: FieldTable = {
    **_COMMON,
    **TOOLS,
    "messages": Field(OBJECTS, "the conversation", True, MESSAGES),
    "logprobs": Field(FLAG, "whether to tell the log-probability of each token"),
    "top_logprobs": Field(WHOLE, "and of that many others in its place, 0 to 20"),
}

COMPLETION: FieldTable = {
    **_COMMON,
    "prompt": Field(
        INPUTS, "what to answer: a text, or tokens as they are, or a list of these, at most 256", True
    ),
    "suffix": Field(TEXT, "what comes behind: the answer belongs between"),
    "logprobs": Field(WHOLE, "how many likely tokens to tell beside each one, 0 to 20"),
    "echo": Field(FLAG, "give the prompt back before the answer, with its `logprobs`; it is raw then"),
    "prompt_logprobs": Field(
        WHOLE, "tell how likely the tokens of the prompt were, and of that many others; it is raw then"
    ),
    "best_of": Field(WHOLE, "the `n` answers are the most likely ones of that many, up to 16"),
    "raw": Field(FLAG, "no template: the prompt as it is"),
}

EMBEDDINGS: FieldTable = {
    **MODEL,
    **TRUNCATE,
    "input": Field(INPUTS, "texts, or lists of tokens", True),
    "dimensions": Field(WHOLE, "keep that many, with a length of 1 again"),
    "encoding_format": Field(TEXT, "`float`, or `base64` of little-endian float32"),
}
