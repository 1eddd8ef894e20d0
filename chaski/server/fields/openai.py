"""Fields of OpenAI's API."""

from __future__ import annotations

from chaski.server.fields.common import KEEP_ALIVE, LORA, MODEL, PLAIN_OPTIONS, STREAM, THINKING, TRUNCATE
from chaski.server.fields.description import (
    FLAG,
    INPUTS,
    NUMBER,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXT_OR_OBJECT,
    WHOLE,
    Field,
    FieldTable,
    ReadFields,
    ReadKinds,
    reads,
)

__all__ = ["BATCH", "CHAT", "COMPLETION", "EMBEDDINGS", "MESSAGES", "TOOLS"]

_STREAM_OPTIONS = Field(
    OBJECT,
    "`include_usage`: whether a stream ends with counts; no padding is ever included",
    parts=reads("include_usage", "include_obfuscation"),
)

_COMMON: FieldTable = {
    **MODEL,
    **THINKING,
    **TRUNCATE,
    **PLAIN_OPTIONS,
    **KEEP_ALIVE,
    **LORA,
    "max_tokens": Field(WHOLE, "tokens of the answer at most; -1: as many as the context holds"),
    "max_completion_tokens": Field(WHOLE, "the same; it goes first"),
    "n": Field(WHOLE, "how many answers, 1 to 16"),
    "use_beam_search": Field(
        FLAG, "as in vLLM: the answers are those of a beam search with `n` beams, or `best_of`; no stream"
    ),
    "length_penalty": Field(
        NUMBER, "with a beam search: the power of its length that an answer's score is divided by"
    ),
    "early_stopping": Field(
        {"oneOf": [FLAG, TEXT]}, "with a beam search: whether it ends with the first answers; or `never`"
    ),
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
    "stream_options": _STREAM_OPTIONS,
    "response_format": Field(
        OBJECT,
        "text, json_object, or a json_schema that the answer follows",
        parts=reads("type", json_schema=reads("schema", "name", "strict")),
    ),
}

# The model's template gets all of a function, but no grammar holds calls to its schema.
_FUNCTION = ReadFields({}, {"strict": (False,)}, is_open=True)
_CUSTOM = reads("name", "description", format=reads("type", grammar=reads("syntax", "definition")))
_TOOLS_OF_CHAT = ReadKinds(
    {
        "function": ReadFields({"function": _FUNCTION}, {"strict": (False,)}, is_open=True),
        "custom": reads("type", custom=_CUSTOM),
    },
    usual="function",
)
_NAMED_TOOL = reads("type", function=reads("name"), custom=reads("name"))
_TOOL_CHOICE = ReadFields({**_NAMED_TOOL.inner, "allowed_tools": reads("mode", tools=_NAMED_TOOL)})
TOOLS: FieldTable = {
    "tools": Field(OBJECTS, "functions that the model may call", parts=_TOOLS_OF_CHAT),
    "tool_choice": Field(
        TEXT_OR_OBJECT, "none, auto, required, or the one to call; enforced", parts=_TOOL_CHOICE
    ),
    "parallel_tool_calls": Field(FLAG, "whether there may be more calls than one; true by default"),
}

# Clients send back the `index` that calls in streams have.
_CALL = reads("id", "type", "index", function=reads("name", "arguments"), custom=reads("name", "input"))
_PARTS = ReadKinds(
    {
        "text": reads("type", "text"),
        "refusal": reads("type", "refusal"),
        "image_url": reads("type", image_url=reads("url", neutral={"detail": ("auto",)})),
        "file": reads("type", file=reads("filename", "file_data", "file_id")),
    }
)
_SAID = {
    **dict.fromkeys(("role", "reasoning", "reasoning_content", "tool_call_id")),
    "content": _PARTS,
    "tool_calls": _CALL,
}
# Citations that a client sends back say nothing that the text does not.
_MESSAGE = ReadFields(_SAID | {"annotations": None})
_RESULT = ReadFields(_SAID | {"name": None})
MESSAGES = ReadKinds(
    {
        **dict.fromkeys(("system", "developer", "user", "assistant"), _MESSAGE),
        **dict.fromkeys(("tool", "function"), _RESULT),
    },
    tag="role",
)
CHAT: FieldTable = {
    **_COMMON,
    **TOOLS,
    "continue_final_message": Field(
        FLAG, "the answer continues the last message, as it always does where that is the assistant's"
    ),
    "add_generation_prompt": Field(FLAG, "may be false where the last message is continued"),
    "messages": Field(OBJECTS, "the conversation", True, MESSAGES),
    "logprobs": Field(FLAG, "whether to tell the log-probability of each token"),
    "top_logprobs": Field(WHOLE, "and of that many others in its place, 0 to 20"),
    "prompt_logprobs": Field(
        WHOLE, "tell how likely the tokens of the prompt were, and of that many others, 0 to 20; no stream"
    ),
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

BATCH: FieldTable = {
    "input_file_id": Field(TEXT, "the file with the requests, as `/v1/files` named it", True),
    "endpoint": Field(TEXT, "the route that all requests ask", True),
    "completion_window": Field(TEXT, "`24h`: what is not answered by then is left out"),
    "metadata": Field(OBJECT, "given back as it is"),
}
