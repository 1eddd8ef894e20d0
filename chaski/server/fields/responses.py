"""Fields of OpenAI's Responses API."""

from __future__ import annotations

from chaski.server.fields.common import MODEL, PLAIN_OPTIONS, STREAM, THINKING
from chaski.server.fields.description import (
    FLAG,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXT_OR_OBJECT,
    TEXT_OR_OBJECTS,
    TEXTS,
    WHOLE,
    Field,
    FieldTable,
    ReadFields,
    ReadKinds,
    reads,
)
from chaski.server.fields.openai import TOOLS

__all__ = ["RESPONSES"]

_PARTS = ReadKinds(
    {
        **dict.fromkeys(("input_text", "text", "summary_text", "reasoning_text"), reads("type", "text")),
        # Citations and log-probabilities that a client sends back add nothing to the text.
        "output_text": reads("type", "text", "annotations", "logprobs"),
        "refusal": reads("type", "refusal"),
        "input_image": reads("type", "image_url", neutral={"detail": ("auto",)}),
        "input_video": reads("type", "fps", video_url=reads("url", "fps")),
        "input_file": reads("type", "filename", "file_data", "file_id", "file_url"),
    }
)
# Fields of every item of an answer, which clients send back.
_ITEM = ("id", "type", "status")


def _call(*names: str) -> ReadFields:
    return reads(*_ITEM, "call_id", "name", "namespace", *names)


def _output(*names: str) -> ReadFields:
    return reads(*_ITEM, "call_id", *names, output=_PARTS)


_FUNCTION = reads("type", "name", "description", "parameters", neutral={"strict": (False,)})
_CUSTOM = reads("type", "name", "description", format=reads("type", "syntax", "definition"))
_TOOL_KINDS = {
    "function": _FUNCTION,
    "custom": _CUSTOM,
    "local_shell": reads("type"),
    "shell": reads("type", environment=reads("type")),
    "apply_patch": reads("type"),
    "tool_search": reads("type", "execution", "description", "parameters"),
}
_TOOLS = ReadKinds(
    {**_TOOL_KINDS, "namespace": reads("type", "name", tools=ReadKinds(_TOOL_KINDS))},
)
_ITEMS = ReadKinds(
    {
        "message": reads(*_ITEM, "role", content=_PARTS),
        "reasoning": reads(*_ITEM, "encrypted_content", content=_PARTS, summary=_PARTS),
        "item_reference": reads("id", "type"),
        "additional_tools": reads(*_ITEM, "role", tools=_TOOLS),
        "function_call": _call("arguments"),
        "custom_tool_call": _call("input"),
        "local_shell_call": _call("action"),
        "shell_call": _call("action"),
        "apply_patch_call": _call("operation"),
        "tool_search_call": _call("arguments", "execution"),
        "function_call_output": _output(),
        "custom_tool_call_output": _output(),
        "local_shell_call_output": _output(),
        "shell_call_output": reads(*_ITEM, "call_id", "output"),
        "apply_patch_call_output": _output(),
        "tool_search_output": reads(*_ITEM, "call_id", "execution", tools=_TOOLS),
    },
    usual="message",
)
_NAMED_TOOL = ("type", "name")
RESPONSES: FieldTable = {
    **MODEL,
    **THINKING,
    **PLAIN_OPTIONS,
    "tools": Field(OBJECTS, "functions that the model may call", parts=_TOOLS),
    "tool_choice": Field(
        TEXT_OR_OBJECT,
        "none, auto, required, or the tool to call; enforced",
        parts=reads(*_NAMED_TOOL, "mode", tools=reads(*_NAMED_TOOL)),
    ),
    "parallel_tool_calls": TOOLS["parallel_tool_calls"],
    "input": Field(
        TEXT_OR_OBJECTS, "a text, or items: messages, tool calls, their results, thinking", True, _ITEMS
    ),
    "instructions": Field(TEXT, "a system message for this answer only"),
    "previous_response_id": Field(TEXT, "the response to continue from; recent responses are kept in memory"),
    "store": Field(FLAG, "whether later requests may continue from the response; true by default"),
    "max_output_tokens": Field(WHOLE, "largest number of tokens of the answer"),
    "max_tool_calls": Field(
        WHOLE, "accepted without effect, since it limits only tools that run on the server"
    ),
    "metadata": Field(OBJECT, "returned unchanged"),
    **{name: Field(TEXT, "returned unchanged") for name in ("user", "prompt_cache_key", "safety_identifier")},
    "text": Field(
        OBJECT,
        "`format`: text, json_object, or a json_schema that the answer follows",
        parts=reads(format=reads("type", "schema", "name", "strict")),
    ),
    "truncation": Field(
        TEXT, "`auto` shortens a prompt that does not fit; `disabled`, the default, refuses it"
    ),
    "include": Field(TEXTS, "`message.output_text.logprobs`"),
    "top_logprobs": Field(
        WHOLE, "with `include`: number of most likely tokens to report with each token, 0 to 20"
    ),
    "stream": Field(FLAG, f"{STREAM}, as server-sent events; false by default"),
    **{
        name: Field({}, "not supported; requests that set it fail")
        for name in ("background", "conversation", "prompt", "context_management")
    },
}
