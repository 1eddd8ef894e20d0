"""Replies of Anthropic's API: conversion of events to blocks."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from chaski.chat.events import Text, Thinking, ToolCall
from chaski.server.answering.events import Delta, Finish, Whole
from chaski.server.dialects.anthropic.marks import created_tokens
from chaski.server.dialects.common.cached import cached_by_tier
from chaski.server.dialects.common.receipts import receipt_fields
from chaski.server.network.jsons import dump_text

__all__ = ["Blocks", "message_whole"]

_Event = tuple[str, dict[str, Any]]
"""The name and the data of a server-sent event."""


class Blocks(Struct):
    """The events of one stream: blocks of thinking, text and calls, one open at a time.

    content: the blocks so far
    """

    model: str
    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")
    content: list[dict[str, Any]] = field(default_factory=list)
    _open: str | None = None

    def begin(self, input_tokens: int) -> _Event:
        """Return the start of the message. Its end will contain the number of cached tokens."""
        usage = {"input_tokens": input_tokens, "output_tokens": 0}
        message = _message(self.id, self.model, [], None, None, usage)
        return "message_start", {"type": "message_start", "message": message}

    def delta(self, delta: Delta) -> Iterator[_Event]:
        """Yield the events for new pieces of the answer."""
        for piece in delta.pieces:
            if isinstance(piece, ToolCall):
                yield from self._call(piece)
            elif piece.text:
                yield from self._text(piece)

    def finish(self, finish: Finish) -> Iterator[_Event]:
        """Yield the end of the message, with its counts."""
        yield from self._close()
        reason, stop = _stop(finish)
        end = {"stop_reason": reason, "stop_sequence": stop}
        said = {"delta": end, "usage": _usage(finish), **receipt_fields(finish)}
        yield "message_delta", {"type": "message_delta", **said}
        yield "message_stop", {"type": "message_stop"}

    def _text(self, piece: Text | Thinking) -> Iterator[_Event]:
        assert not isinstance(piece, ToolCall)
        kind = "thinking" if isinstance(piece, Thinking) else "text"
        if self._open != kind:
            empty = {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""}
            yield from self._start(kind, {"type": kind, **empty})
        self.content[-1][kind] += piece.text
        yield self._piece({"type": f"{kind}_delta", kind: piece.text})

    def _call(self, call: ToolCall) -> Iterator[_Event]:
        block = _tool_use(call)
        yield from self._start("tool_use", block | {"input": {}})
        self.content[-1] = block
        arguments = dump_text(call.arguments)
        yield self._piece({"type": "input_json_delta", "partial_json": arguments})
        yield from self._close()

    def _start(self, kind: str, block: dict[str, Any]) -> Iterator[_Event]:
        yield from self._close()
        self._open = kind
        self.content.append(dict(block))
        data = {"type": "content_block_start", "index": self._index, "content_block": block}
        yield "content_block_start", data

    @property
    def _index(self) -> int:
        return len(self.content) - 1

    def _piece(self, delta: dict[str, Any]) -> _Event:
        return "content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[_Event]:
        if self._open is not None:
            self._open = None
            yield "content_block_stop", {"type": "content_block_stop", "index": self._index}


def message_whole(model: str, whole: Whole) -> dict[str, Any]:
    """Return a message for a request without streaming."""
    content: list[dict[str, Any]] = []
    if whole.thinking:
        content.append({"type": "thinking", "thinking": whole.thinking, "signature": ""})
    if whole.content or not whole.calls:
        content.append({"type": "text", "text": whole.content})
    content += [_tool_use(call) for call in whole.calls]
    reason, stop = _stop(whole.finish)
    message = _message(f"msg_{secrets.token_hex(12)}", model, content, reason, stop, _usage(whole.finish))
    return message | receipt_fields(whole.finish)


def _tool_use(call: ToolCall) -> dict[str, Any]:
    id = f"toolu_{secrets.token_hex(12)}"
    return {"type": "tool_use", "id": id, "name": call.name, "input": dict(call.arguments)}


def _message(
    id: str,
    model: str,
    content: list[dict[str, Any]],
    reason: str | None,
    stop: str | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    head = {"id": id, "type": "message", "role": "assistant", "model": model}
    return head | {"content": content, "stop_reason": reason, "stop_sequence": stop, "usage": usage}


def _stop(finish: Finish) -> tuple[str, str | None]:
    if finish.is_cut:
        is_full = finish.done.prompt_tokens + finish.done.generated_tokens > finish.context
        return "model_context_window_exceeded" if is_full else "max_tokens", None
    if finish.called:
        return "tool_use", None
    stop = finish.done.stop_string
    return ("end_turn", None) if stop is None else ("stop_sequence", stop)


def _usage(finish: Finish) -> dict[str, Any]:
    """Return the counts of tokens. Input tokens exclude cached tokens, and tokens that a mark now keeps."""
    done = finish.done
    created = created_tokens(done)
    num_created = sum(created.values())
    details = {"output_tokens_details": {"thinking_tokens": finish.thought}} if finish.thought else {}
    return {
        "input_tokens": done.evaluated_tokens - num_created,
        "cache_read_input_tokens": done.cached_tokens,
        **cached_by_tier([done]),
        "cache_creation_input_tokens": num_created,
        "cache_creation": created,
        "output_tokens": done.generated_tokens,
        **details,
    }
