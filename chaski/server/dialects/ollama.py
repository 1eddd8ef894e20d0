"""Ollama's API: conversion of bodies to requests, and of events to fields.

As in Ollama, zero and empty fields are left out.
"""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from chaski.chat.arguments import read_arguments
from chaski.chat.events import Text, Thinking, ToolCall
from chaski.durations import parse_duration
from chaski.errors import OptionError
from chaski.server.answering.events import Delta, Finish, Score, ServiceEvent, TopScore, Whole
from chaski.server.answering.requests import ChatRequest, EmbedRequest, GenerateRequest
from chaski.server.dialects.common.cached import cached_by_tier
from chaski.server.dialects.common.images import check_images, read_base64
from chaski.server.dialects.common.receipts import receipt_fields
from chaski.server.dialects.common.tools import function_tool, require_distinct
from chaski.server.fields.reader import Fields
from chaski.server.network.jsons import InnerJson

__all__ = [
    "chat_fields",
    "chat_whole",
    "empty_fields",
    "generate_fields",
    "generate_whole",
    "read_answer_id",
    "read_chat",
    "read_embed",
    "read_generate",
    "read_keep_alive",
    "read_think",
    "timestamp",
]

MAX_TOP_LOGPROBS = 20
_LEVELS = ("high", "medium", "low", "max")
_ROLES = ("system", "user", "assistant", "tool")
_ID_LETTERS = string.ascii_lowercase + string.digits


def read_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request of /api/chat. Raises OptionError."""
    fields = Fields(body)
    inner = InnerJson()
    messages = [_message(message, inner) for message in fields.objects("messages")]
    check_images(messages)
    tools = [function_tool(tool) or dict(tool.data) for tool in fields.objects("tools")]
    require_distinct(tools)
    return ChatRequest(
        messages=messages,
        tools=tools,
        begun=fields.text("answer_prefix"),
        **_common(fields),
    )


def read_answer_id(body: Mapping[str, Any]) -> str | None:
    """Return the id under which a client may reconnect to its answer; None if it sends none."""
    return Fields(body).text_or_none("answer_id")


def read_generate(body: Mapping[str, Any]) -> GenerateRequest:
    """Read a request of /api/generate. Raises OptionError."""
    fields = Fields(body)
    raw = fields.flag("raw", False)
    context = fields.items("context")
    template, system = fields.text("template"), fields.text_or_none("system")
    if raw and (template or system or context):
        raise OptionError("raw mode does not support template, system, or context")
    if raw and fields.text("suffix"):
        raise OptionError("raw mode does not support suffix, since the model's template writes it")
    if not all(type(token) is int for token in context):
        raise OptionError("context must be a list of integers")
    images = _images(fields)
    check_images([{"images": images}])
    return GenerateRequest(
        prompt=fields.text("prompt"),
        suffix=fields.text("suffix"),
        system=system,
        template=template or None,
        context=context,
        raw=raw,
        images=images,
        returns_context=not raw,
        **_common(fields),
    )


def read_embed(body: Mapping[str, Any]) -> EmbedRequest:
    """Read a request of /api/embed, whose inputs are texts or lists of tokens. Raises OptionError."""
    fields = Fields(body)
    dimensions = fields.integer("dimensions", None)
    if dimensions is not None and dimensions < 0:
        raise OptionError("dimensions must be at least 0")
    return EmbedRequest(inputs=read_inputs(fields, "input"), dimensions=dimensions, **_base(fields))


def read_inputs(fields: Fields, name: str) -> list[str | list[int]]:
    """Read texts or lists of tokens, or a single one of these. Raises OptionError."""
    value = fields.data.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    items = fields.items(name)
    if items and all(type(item) is int for item in items):
        return [list(items)]
    is_known = all(
        isinstance(i, str) or (isinstance(i, list) and all(type(t) is int for t in i)) for i in items
    )
    if not is_known:
        raise OptionError("invalid input type")
    return list(items)


def read_keep_alive(fields: Fields) -> float | None:
    """Return `keep_alive` in seconds."""
    return parse_duration(fields.data["keep_alive"]) if fields.has("keep_alive") else None


def read_think(fields: Fields) -> bool | str | None:
    """Return `think` as a boolean or a level; None if it is unset. Raises OptionError."""
    value = fields.data.get("think")
    if value is None or isinstance(value, bool):
        return value
    words = '"high", "medium", "low", "max", true, or false'
    if not isinstance(value, str):
        raise OptionError(f"think must be a boolean or string ({words})")
    if value not in _LEVELS:
        raise OptionError(f'invalid think value: "{value:.40}" (must be {words})')
    return value


def chat_fields(model: str, event: ServiceEvent) -> dict[str, Any]:
    """Return a line of the stream of a chat."""
    if isinstance(event, Finish):
        return _head(model) | {"message": {"role": "assistant", "content": ""}} | _end(event)
    content, thinking, calls = _parts(event)
    message = _assistant(content, thinking, calls)
    return _head(model) | {"message": message, "done": False} | _logprobs(event.scores)


def chat_whole(model: str, whole: Whole) -> dict[str, Any]:
    """Return the answer of a chat without streaming."""
    message = _assistant(whole.content, whole.thinking, whole.calls)
    return _head(model) | {"message": message} | _end(whole.finish) | _logprobs(whole.scores)


def generate_fields(model: str, event: ServiceEvent) -> dict[str, Any]:
    """Return a line of the stream of a completion."""
    if isinstance(event, Finish):
        return _head(model) | {"response": ""} | _end(event)
    content, thinking, _ = _parts(event)
    found = {"response": content} | ({"thinking": thinking} if thinking else {})
    return _head(model) | found | {"done": False} | _logprobs(event.scores)


def generate_whole(model: str, whole: Whole) -> dict[str, Any]:
    """Return a completion without streaming."""
    found = {"response": whole.content} | ({"thinking": whole.thinking} if whole.thinking else {})
    return _head(model) | found | _end(whole.finish) | _logprobs(whole.scores)


def empty_fields(model: str, reason: str, is_chat: bool) -> dict[str, Any]:
    """Return the answer to a request that only loads or unloads a model."""
    message = {"role": "assistant", "content": ""}
    said: dict[str, Any] = {"message": message} if is_chat else {"response": ""}
    return _head(model) | said | {"done": True, "done_reason": reason}


def timestamp(seconds: float | None = None) -> str:
    """Return a UTC time with nanoseconds in Go's format; the current time by default."""
    now = time.time_ns() if seconds is None else int(seconds * 1e9)
    whole, nanoseconds = divmod(now, 10**9)
    return f"{_second(whole)}.{nanoseconds:09d}Z"


@lru_cache(16)
def _second(seconds: int) -> str:
    """Return the date and time, cached because all lines of a second share it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _base(fields: Fields) -> dict[str, Any]:
    """Read the fields that embedding requests share with other requests."""
    return {
        "model": fields.text("model", "name"),
        "options": fields.mapping("options"),
        "keep_alive": read_keep_alive(fields),
        "truncate": fields.flag("truncate", True),
    }


def _common(fields: Fields) -> dict[str, Any]:
    top = fields.integer("top_logprobs", 0)
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise OptionError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    base = _base(fields)
    return base | {
        "options": {**base["options"], **fields.receipt()},
        "stream": fields.flag("stream", True),
        "shift": fields.flag("shift", True),
        "think": read_think(fields),
        "format": _format(fields.data.get("format")),
        "logprobs": fields.flag("logprobs", False) or top > 0,
        "top_logprobs": top,
    }


def _format(value: Any) -> Any:
    if value in (None, ""):
        return None
    if value == "json" or isinstance(value, dict):
        return value
    raise OptionError(f'invalid format: "{value!s:.80}"; expected "json" or a valid JSON Schema object')


def _message(fields: Fields, inner: InnerJson) -> dict[str, Any]:
    role = fields.text("role").lower()
    if role not in _ROLES:
        raise OptionError(f'invalid role "{role:.40}": it must be system, user, assistant or tool')
    found: dict[str, Any] = {"role": role, "content": fields.text("content")}
    found |= {
        name: fields.text(name) for name in ("thinking", "tool_name", "tool_call_id") if fields.has(name)
    }
    if calls := [_call(call, inner) for call in fields.objects("tool_calls")]:
        found["tool_calls"] = calls
    if images := _images(fields):
        found["images"] = images
    return found


def _images(fields: Fields) -> list[bytes]:
    return [read_base64(image, f"images[{index}]") for index, image in enumerate(fields.items("images"))]


def _call(fields: Fields, inner: InnerJson) -> dict[str, Any]:
    function = Fields(fields.mapping("function"), "function")
    arguments = read_arguments(function.data.get("arguments"), inner.load)
    return {"id": fields.text("id"), "function": {"name": function.text("name"), "arguments": arguments}}


def _parts(delta: Delta) -> tuple[str, str, list[ToolCall]]:
    """Return the text, thinking and calls of a delta."""
    content = "".join(piece.text for piece in delta.pieces if isinstance(piece, Text))
    thinking = "".join(piece.text for piece in delta.pieces if isinstance(piece, Thinking))
    return content, thinking, [piece for piece in delta.pieces if isinstance(piece, ToolCall)]


def _assistant(content: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = [
            {"id": call_id(), "function": {"index": index, "name": call.name, "arguments": call.arguments}}
            for index, call in enumerate(calls)
        ]
    return message


def call_id() -> str:
    """Return a new random id for a call."""
    return "call_" + "".join(secrets.choice(_ID_LETTERS) for _ in range(8))


def _head(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": timestamp()}


def _end(finish: Finish) -> dict[str, Any]:
    done = finish.done
    counts = {
        "context": finish.token_ids,
        "total_duration": _nanoseconds(finish.total_seconds),
        "load_duration": _nanoseconds(finish.load_seconds),
        "prompt_eval_count": done.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(done.prefill_seconds),
        "eval_count": done.generated_tokens,
        "eval_duration": _nanoseconds(done.decode_seconds),
        "thinking_count": finish.thought,
        "prompt_cached_count": done.cached_tokens,
        **cached_by_tier([done]),
        "prompt_dropped_count": finish.dropped,
        "truncated": finish.dropped > 0,
        "shifted_count": done.shifted_tokens,
        "proposed_count": done.proposed_tokens,
        "accepted_count": done.accepted_tokens,
        "context_length": finish.context,
    }
    said = {key: value for key, value in counts.items() if value} | receipt_fields(finish)
    return {"done": True, "done_reason": "stop" if done.reason == "cancelled" else done.reason} | said


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _logprobs(scores: Sequence[Score]) -> dict[str, Any]:
    return {"logprobs": [score_fields(score) for score in scores]} if scores else {}


def score_fields(score: Score) -> dict[str, Any]:
    """Return the fields of a token, and of the most likely tokens at its position."""
    top = {} if score.top is None else {"top_logprobs": [_token(each) for each in score.top]}
    return _token(score.chosen) | top


def _token(score: TopScore) -> dict[str, Any]:
    return {"token": score.token, "logprob": score.logprob, "bytes": list(score.data)}
