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
    "`include_usage`: whether a stream ends with token counts; streams never contain padding",
    parts=reads("include_usage", "include_obfuscation"),
)

_COMMON: FieldTable = {
    **MODEL,
    **THINKING,
    **TRUNCATE,
    **PLAIN_OPTIONS,
    **KEEP_ALIVE,
    **LORA,
    "max_tokens": Field(WHOLE, "largest number of tokens of the answer; -1: as many as fit into the context"),
    "max_completion_tokens": Field(WHOLE, "the same as `max_tokens`, over which it takes precedence"),
    "n": Field(WHOLE, "number of answers, 1 to 16"),
    "use_beam_search": Field(
        FLAG,
        "as in vLLM: whether a beam search with `n` or `best_of` beams finds the answers; not for streams",
    ),
    "length_penalty": Field(
        NUMBER, "with a beam search: an answer's score is divided by its length to this power"
    ),
    "early_stopping": Field(
        {"oneOf": [FLAG, TEXT]},
        "with a beam search: whether it ends as soon as enough answers are complete; or `never`",
    ),
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
    "stream_options": _STREAM_OPTIONS,
    "response_format": Field(
        OBJECT,
        "text, json_object, or a json_schema that the answer follows",
        parts=reads("type", json_schema=reads("schema", "name", "strict")),
    ),
}

# The model's template receives the whole function, but no grammar makes calls follow its schema.
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
        TEXT_OR_OBJECT, "none, auto, required, or the tool to call; enforced", parts=_TOOL_CHOICE
    ),
    "parallel_tool_calls": Field(FLAG, "whether an answer may contain several calls; true by default"),
}

# Clients send back the `index` of calls in streams.
_CALL = reads("id", "type", "index", function=reads("name", "arguments"), custom=reads("name", "input"))
_PARTS = ReadKinds(
    {
        "text": reads("type", "text"),
        "refusal": reads("type", "refusal"),
        "image_url": reads("type", image_url=reads("url", neutral={"detail": ("auto",)})),
        "video_url": reads("type", "fps", video_url=reads("url", "fps")),
        "video": reads("type", "fps", "video"),
        "input_video": reads("type", "fps", video_url=reads("url", "fps"), input_video=reads("url", "fps")),
        "file": reads("type", file=reads("filename", "file_data", "file_id")),
    }
)
_SAID = {
    **dict.fromkeys(("role", "reasoning", "reasoning_content", "tool_call_id")),
    "content": _PARTS,
    "tool_calls": _CALL,
}
# Citations that a client sends back add nothing to the text.
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
        FLAG, "whether the answer continues the last message, which it always does if that is the assistant's"
    ),
    "add_generation_prompt": Field(FLAG, "may be false if the answer continues the last message"),
    "messages": Field(OBJECTS, "the conversation", True, MESSAGES),
    "logprobs": Field(FLAG, "whether the reply contains the log-probability of each token"),
    "top_logprobs": Field(WHOLE, "number of most likely tokens to report at each position, 0 to 20"),
    "prompt_logprobs": Field(
        WHOLE,
        "number of most likely tokens to report with each token of the prompt, 0 to 20; not for streams",
    ),
}

COMPLETION: FieldTable = {
    **_COMMON,
    "prompt": Field(
        INPUTS,
        "the prompt: a text, a list of tokens that are used as they are, or a list of at most 256 of these",
        True,
    ),
    "suffix": Field(TEXT, "text after the gap that the answer fills"),
    "logprobs": Field(WHOLE, "number of most likely tokens to report with each token, 0 to 20"),
    "echo": Field(
        FLAG, "whether the answer begins with the prompt and its `logprobs`; the prompt is then raw"
    ),
    "prompt_logprobs": Field(
        WHOLE, "number of most likely tokens to report with each token of the prompt, which is then raw"
    ),
    "best_of": Field(WHOLE, "number of answers, up to 16, of which the `n` most likely are returned"),
    "raw": Field(FLAG, "whether to use the prompt as it is, without a template"),
}

EMBEDDINGS: FieldTable = {
    **MODEL,
    **TRUNCATE,
    "input": Field(INPUTS, "texts, or lists of tokens", True),
    "dimensions": Field(WHOLE, "number of values to keep of each vector, which is then normalized again"),
    "encoding_format": Field(TEXT, "`float`, or `base64` of little-endian float32"),
}

BATCH: FieldTable = {
    "input_file_id": Field(TEXT, "the id of the file with the requests, as returned by `/v1/files`", True),
    "endpoint": Field(TEXT, "the route of all requests", True),
    "completion_window": Field(TEXT, "`24h`; requests that are not answered by then are left out"),
    "metadata": Field(OBJECT, "returned unchanged"),
}
