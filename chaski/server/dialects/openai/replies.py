"""Replies of OpenAI's API: events to its objects. Tool calls go out whole, one a chunk."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.server.dialects.custom import custom_input
from chaski.server.events import Delta, Finish, Score, TopScore, Whole
from chaski.server.jsons import dump_text
from chaski.text.parsers import Content, Thinking, ToolCall

__all__ = ["Chunks", "chat_whole", "completion_whole", "embeddings", "shown_scores"]


@dataclass(slots=True)
class Chunks:
    """The chunks of one stream: they share an id and a time.

    is_chat       chat, else a text completion
    custom_tools  names of tools whose calls go out as one text
    """

    model: str
    is_chat: bool
    custom_tools: Collection[str] = ()
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    _begun: set[int] = field(default_factory=set)
    _calls: dict[int, int] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = self.id or _id("chatcmpl" if self.is_chat else "cmpl")

    def delta(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """Chunks for what is new in answer `index`: thinking and content apart."""
        if not self.is_chat:
            text = _content(delta)
            begin = self._lengths.get(index, 0)
            self._lengths[index] = begin + len(text)
            return [self._chunk(index, {"text": text, "logprobs": _text_logprobs(delta.scores, begin)}, None)]
        said = [{"reasoning": _thinking(delta)}, {"content": _content(delta)}]
        parts: list[dict[str, Any]] = [part for part in said if any(part.values())]
        parts += [{"tool_calls": [call]} for call in self._tool_calls(index, delta)]
        if not parts and delta.scores:
            parts = [{"content": ""}]
        chunks = [self._chat_chunk(index, part) for part in parts]
        if chunks and delta.scores:
            chunks[-1]["choices"][0]["logprobs"] = _chat_logprobs(delta.scores)
        return chunks

    def finish(self, index: int, finish: Finish) -> dict[str, Any]:
        """The last chunk of answer `index`."""
        reason = _reason(finish)
        if self.is_chat:
            return self._chunk(index, {"delta": {}, "logprobs": None}, reason)
        return self._chunk(index, {"text": "", "logprobs": None}, reason)

    def usage(self, finishes: Sequence[Finish]) -> dict[str, Any]:
        """The chunk of counts, behind all answers."""
        return self._head() | {"choices": [], "usage": _usage(finishes)}

    def _chat_chunk(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        role = {} if index in self._begun else {"role": "assistant"}
        self._begun.add(index)
        return self._chunk(index, {"delta": role | delta, "logprobs": None}, None)

    def _tool_calls(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        calls = [piece for piece in delta.pieces if isinstance(piece, ToolCall)]
        begin = self._calls.get(index, 0)
        self._calls[index] = begin + len(calls)
        return [_call(begin + number, call, self.custom_tools) for number, call in enumerate(calls)]

    def _chunk(self, index: int, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return self._head() | {"choices": [{"index": index, **said, "finish_reason": reason}]}

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return _head(self.id, kind, self.created, self.model)


def chat_whole(model: str, answers: Sequence[Whole], custom_tools: Collection[str] = ()) -> dict[str, Any]:
    """A chat without stream. custom_tools: names of tools whose calls go out as one text."""
    choices = [
        {
            "index": index,
            "message": _message_of(answer, custom_tools),
            "finish_reason": _reason(answer.finish),
            "logprobs": _chat_logprobs(answer.scores),
        }
        for index, answer in enumerate(answers)
    ]
    head = _head(_id("chatcmpl"), "chat.completion", int(time.time()), model)
    return head | {"choices": choices, "usage": _usage([answer.finish for answer in answers])}


def completion_whole(model: str, answers: Sequence[Whole]) -> dict[str, Any]:
    """A completion without stream."""
    choices = [
        {
            "index": index,
            "text": answer.content,
            "finish_reason": _reason(answer.finish),
            "logprobs": _text_logprobs(answer.scores, 0),
        }
        for index, answer in enumerate(answers)
    ]
    head = _head(_id("cmpl"), "text_completion", int(time.time()), model)
    return head | {"choices": choices, "usage": _usage([answer.finish for answer in answers])}


def embeddings(model: str, rows: npt.NDArray[np.float32], tokens: int, in_base64: bool) -> dict[str, Any]:
    """Vectors, as numbers or as bytes of little-endian float32 in base64."""

    def shown(row: npt.NDArray[np.float32]) -> object:
        return base64.b64encode(row.astype("<f4").tobytes()).decode() if in_base64 else row.tolist()

    data = [
        {"object": "embedding", "embedding": shown(row), "index": index} for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _head(id: str, kind: str, created: int, model: str) -> dict[str, Any]:
    fingerprint = {"system_fingerprint": "fp_chaski"}
    return {"id": id, "object": kind, "created": created, "model": model, **fingerprint}


def _id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def _reason(finish: Finish) -> str:
    if finish.is_cut:
        return "length"
    return "tool_calls" if finish.called else "stop"


def _content(delta: Delta) -> str:
    return "".join(piece.text for piece in delta.pieces if isinstance(piece, Content))


def _thinking(delta: Delta) -> str:
    return "".join(piece.text for piece in delta.pieces if isinstance(piece, Thinking))


def _message_of(answer: Whole, custom_tools: Collection[str]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.thinking:
        message["reasoning"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [_call(index, call, custom_tools) for index, call in enumerate(answer.calls)]
        message["content"] = answer.content or None
    return message


def _call(index: int, call: ToolCall, custom_tools: Collection[str]) -> dict[str, Any]:
    head = {"id": f"call_{secrets.token_hex(12)}", "index": index}
    if call.name in custom_tools:
        custom = {"name": call.name, "input": custom_input(call.arguments)}
        return {**head, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": dump_text(call.arguments)}
    return {**head, "type": "function", "function": function}


def _usage(finishes: Sequence[Finish]) -> dict[str, Any]:
    """Counts of all answers; their common prompt counts once."""
    first = finishes[0]
    generated = sum(finish.done.generated_tokens for finish in finishes)
    usage: dict[str, Any] = {
        "prompt_tokens": first.done.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": first.done.prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": first.done.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(finish.thought for finish in finishes)},
    }
    # What a client cannot see otherwise: how much of its prompt was left out.
    dropped = (
        {"prompt_tokens_dropped": first.dropped, "context_length": first.context} if first.dropped else {}
    )
    return usage | dropped


def _chat_logprobs(scores: Sequence[Score]) -> dict[str, Any] | None:
    if not scores:
        return None
    return {"content": shown_scores(scores)}


def shown_scores(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Tokens, and those that were most likely in their place."""
    return [
        _shown(score.chosen) | {"top_logprobs": [_shown(each) for each in score.top or ()]}
        for score in scores
    ]


def _shown(score: TopScore) -> dict[str, Any]:
    return {"token": score.token, "logprob": score.logprob, "bytes": list(score.data)}


def _text_logprobs(scores: Sequence[Score], begin: int) -> dict[str, Any] | None:
    """begin: characters of the answer before these tokens."""
    if not scores:
        return None
    return {
        "tokens": [score.chosen.token for score in scores],
        "token_logprobs": [score.chosen.logprob for score in scores],
        "top_logprobs": [{each.token: each.logprob for each in score.top or ()} for score in scores],
        "text_offset": list(accumulate((len(score.chosen.token) for score in scores[:-1]), initial=begin)),
    }
