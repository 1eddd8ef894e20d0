"""Replies of OpenAI's Responses API: items of thinking, text and calls, one open at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from chaski.chat.events import Text, Thinking, ToolCall
from chaski.server.answering.events import Delta, Finish
from chaski.server.dialects.common.cached import cached_by_tier
from chaski.server.dialects.common.receipts import receipt_fields
from chaski.server.dialects.openai.replies import shown_scores
from chaski.server.dialects.responses.requests import ResponseRequest
from chaski.server.dialects.responses.tools import FUNCTION, Tool, form_of_call, read_call
from chaski.server.fields.reader import Fields
from chaski.server.http.api import openai_fault
from chaski.server.http.problems import Problem
from chaski.server.network.jsons import InnerJson

__all__ = ["Items"]

_Event = dict[str, Any]
"""The data of a server-sent event; its name is its `type`."""

_EMPTY: Mapping[str, Mapping[str, Any]] = {
    "reasoning": {"prefix": "rs", "summary": []},
    "message": {"prefix": "msg", "role": "assistant", "content": []},
}
"""The fields of each type of item before it has content, and the prefix of its id."""


class _Open(Struct):
    """The item that is being written."""

    item: dict[str, Any]
    text: str = ""
    scores: list[dict[str, Any]] = field(default_factory=list)


class Items(Struct):
    """The response to one request. It converts the answer's events to a stream and collects the response."""

    request: ResponseRequest
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(24)}")
    created: int = field(default_factory=lambda: int(time.time()))
    _number: int = 0
    _output: list[dict[str, Any]] = field(default_factory=list)
    _open: _Open | None = None
    _end: dict[str, Any] = field(default_factory=lambda: {"status": "in_progress"})

    def begin(self) -> Iterator[_Event]:
        """Yield the start of the stream."""
        yield self._event("response.created", response=self.response)
        yield self._event("response.in_progress", response=self.response)

    def delta(self, delta: Delta) -> Iterator[_Event]:
        """Yield the events for new pieces of the answer."""
        scores = shown_scores(delta.scores)
        for piece in delta.pieces:
            if isinstance(piece, ToolCall):
                yield from self._call(piece)
            elif piece.text:
                yield from self._text(piece, scores)
                scores = []

    def finish(self, finish: Finish) -> Iterator[_Event]:
        """Yield the end of the last item and of the response."""
        status = "incomplete" if finish.is_cut else "completed"
        yield from self._close(status)
        details = {"reason": "max_output_tokens"} if finish.is_cut else None
        now = None if finish.is_cut else int(time.time())
        self._end = {"status": status, "incomplete_details": details, "completed_at": now}
        self._end |= {"usage": _usage(finish), **receipt_fields(finish)}
        yield self._event(f"response.{status}", response=self.response)

    def fail(self, problem: Problem) -> Iterator[_Event]:
        """Yield the end of a response that failed."""
        yield from self._close("incomplete")
        code, message = openai_fault(problem)
        self._end = {"status": "failed", "error": {"code": code or "server_error", "message": message}}
        yield self._event("response.failed", response=self.response)

    @property
    def response(self) -> dict[str, Any]:
        """The response so far."""
        head = {"id": self.id, "object": "response", "created_at": self.created, **self.request.echo}
        usual = {"error": None, "incomplete_details": None, "completed_at": None, "usage": None}
        return head | {"output": list(self._output)} | usual | self._end

    @property
    def turn(self) -> Mapping[str, Any]:
        """The answer as a message in Ollama's form, for requests that continue from it."""
        items = self._output
        thinking = "".join(item["summary"][0]["text"] for item in items if item["type"] == "reasoning")
        texts = [item["content"][0]["text"] for item in items if item["type"] == "message"]
        calls = [read_call(Fields(item), InnerJson()) for item in items if form_of_call(item["type"])]
        said: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
        said |= {"thinking": thinking} if thinking else {}
        return said | ({"tool_calls": calls} if calls else {})

    def _text(self, piece: Text | Thinking, scores: Sequence[dict[str, Any]]) -> Iterator[_Event]:
        assert not isinstance(piece, ToolCall)
        kind = "reasoning" if isinstance(piece, Thinking) else "message"
        if self._open is None or self._open.item["type"] != kind:
            yield from self._start(kind, **_EMPTY[kind])
        assert self._open is not None
        self._open.text += piece.text
        if kind == "reasoning":
            yield self._of_part("response.reasoning_summary_text.delta", delta=piece.text)
        else:
            self._open.scores += scores
            yield self._of_part("response.output_text.delta", delta=piece.text, logprobs=list(scores))

    def _call(self, call: ToolCall) -> Iterator[_Event]:
        tool = self.request.tools.get(call.name) or Tool(FUNCTION, call.name)
        form, fields = tool.form, tool.item(call.arguments)
        text = fields[form.field] if form.stream else ""
        empty = {form.field: ""} if form.stream else {}
        call_id = f"call_{secrets.token_hex(12)}"
        yield from self._start(form.call, form.prefix, call_id=call_id, **(fields | empty))
        assert self._open is not None
        self._open.text = text
        if form.stream:
            yield self._of_item(f"response.{form.stream}.delta", delta=text)
        yield from self._close("completed")

    def _start(self, kind: str, prefix: str, **fields: Any) -> Iterator[_Event]:
        yield from self._close("completed")
        item = {"id": f"{prefix}_{secrets.token_hex(24)}", "type": kind, "status": "in_progress"}
        self._open = _Open(item | fields)
        shown = dict(self._open.item)
        yield self._event("response.output_item.added", output_index=len(self._output), item=shown)
        if kind == "reasoning":
            yield self._of_part("response.reasoning_summary_part.added", part=_summary(""))
        elif kind == "message":
            yield self._of_part("response.content_part.added", part=_output_text("", []))

    def _close(self, status: str) -> Iterator[_Event]:
        if self._open is None:
            return
        yield from self._ending(self._open)
        self._open.item["status"] = status
        index = len(self._output)
        self._output.append(self._open.item)
        self._open = None
        yield self._event("response.output_item.done", output_index=index, item=self._output[-1])

    def _ending(self, found: _Open) -> Iterator[_Event]:
        """Yield the events that end an item's parts, and store the parts in the item."""
        match found.item["type"]:
            case "reasoning":
                part = _summary(found.text)
                found.item["summary"] = [part]
                yield self._of_part("response.reasoning_summary_text.done", text=found.text)
                yield self._of_part("response.reasoning_summary_part.done", part=part)
            case "message":
                part = _output_text(found.text, found.scores)
                found.item["content"] = [part]
                yield self._of_part("response.output_text.done", text=found.text, logprobs=found.scores)
                yield self._of_part("response.content_part.done", part=part)
            case kind if (form := form_of_call(kind)) and form.stream:
                found.item[form.field] = found.text
                yield self._of_item(f"response.{form.stream}.done", **{form.field: found.text})

    def _of_part(self, type: str, **fields: Any) -> _Event:
        """Return an event about the only part of the open item."""
        assert self._open is not None
        index = "summary_index" if self._open.item["type"] == "reasoning" else "content_index"
        return self._of_item(type, **{index: 0}, **fields)

    def _of_item(self, type: str, **fields: Any) -> _Event:
        assert self._open is not None
        return self._event(type, item_id=self._open.item["id"], output_index=len(self._output), **fields)

    def _event(self, type: str, **fields: Any) -> _Event:
        number, self._number = self._number, self._number + 1
        return {"type": type, "sequence_number": number, **fields}


def _summary(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _output_text(text: str, scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(scores)}


def _usage(finish: Finish) -> dict[str, Any]:
    done = finish.done
    return {
        "input_tokens": done.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": done.cached_tokens,
            "cache_write_tokens": 0,
            **cached_by_tier([done]),
        },
        "output_tokens": done.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": finish.thought},
        "total_tokens": done.prompt_tokens + done.generated_tokens,
    }
