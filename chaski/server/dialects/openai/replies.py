"""Replies of OpenAI's API: conversion of events to objects. Each tool call is sent whole, in one chunk."""

from __future__ import annotations

import base64
import math
import secrets
import time
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from chaski.chat.events import Text, Thinking, ToolCall
from chaski.server.answering.events import Delta, Finish, Prompted, Score, TopScore, Whole
from chaski.server.dialects.common.cached import cached_by_tier
from chaski.server.dialects.common.custom import custom_input
from chaski.server.dialects.common.receipts import receipt_fields
from chaski.server.dialects.openai.requests import CompletionRequest
from chaski.server.network.jsons import dump_text
from chaski.server.network.large_json import Items

__all__ = ["Chunks", "chat_whole", "completion_whole", "embeddings", "shown_scores"]


class Chunks(Struct):
    """The chunks of one stream, which share an id and a time.

    completion    the request of a completion; None for a chat
    custom_tools  names of tools whose calls are sent as plain text
    names_tool    whether the request names the tool to call; the answer then ends with `stop`
    """

    model: str
    completion: CompletionRequest | None = None
    custom_tools: Collection[str] = ()
    names_tool: bool = False
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    _begun: set[int] = field(default_factory=set)
    _calls: dict[int, int] = field(default_factory=dict)
    _lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = self.id or _id("chatcmpl" if self.completion is None else "cmpl")

    def delta(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """Return chunks for new pieces of answer `index`, with thinking and content in separate chunks."""
        if self.completion is not None:
            begin = self._lengths.get(index, 0)
            said = _completed(self.completion, delta.prompted, _content(delta), delta.scores, begin)
            self._lengths[index] = begin + len(said["text"])
            return [self._chunk(index, said, None)]
        texts = [{"reasoning": _thinking(delta)}, {"content": _content(delta)}]
        parts: list[dict[str, Any]] = [part for part in texts if any(part.values())]
        parts += [{"tool_calls": [call]} for call in self._tool_calls(index, delta)]
        if not parts and delta.scores:
            parts = [{"content": ""}]
        chunks = [self._chat_chunk(index, part) for part in parts]
        if chunks and delta.scores:
            chunks[-1]["choices"][0]["logprobs"] = _chat_logprobs(delta.scores)
        return chunks

    def finish(self, index: int, finish: Finish) -> list[dict[str, Any]]:
        """Return the last chunk of answer `index`, after a chunk with the role if the answer is empty."""
        reason = _reason(finish, self.names_tool)
        if self.completion is not None:
            return [self._chunk(index, {"text": "", "logprobs": None, **receipt_fields(finish)}, reason)]
        first = [] if index in self._begun else [self._chat_chunk(index, {"content": ""})]
        said = {"delta": {}, "logprobs": None, **receipt_fields(finish)}
        return [*first, self._chunk(index, said, reason)]

    def usage(self, finishes: Sequence[Finish]) -> dict[str, Any]:
        """Return the chunk of token counts, which follows all answers."""
        num_prompts = 1 if self.completion is None else len(self.completion.prompts)
        return self._head() | {"choices": [], "usage": _usage(finishes, num_prompts)}

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
        kind = "chat.completion.chunk" if self.completion is None else "text_completion"
        return _head(self.id, kind, self.created, self.model)


def chat_whole(
    model: str, answers: Sequence[Whole], custom_tools: Collection[str] = (), names_tool: bool = False
) -> dict[str, Any]:
    """Return a chat without streaming. `custom_tools` and `names_tool` are as in `Chunks`."""
    choices = [
        {
            "index": index,
            "message": _message_of(answer, custom_tools),
            "finish_reason": _reason(answer.finish, names_tool),
            "logprobs": _chat_logprobs(answer.scores),
            **receipt_fields(answer.finish),
        }
        for index, answer in enumerate(answers)
    ]
    head = _head(_id("chatcmpl"), "chat.completion", int(time.time()), model)
    said = {"choices": choices, "usage": _usage([answer.finish for answer in answers])}
    # All answers have the same prompt, which the first one contains.
    prompted = answers[0].prompted
    return head | said | ({} if prompted is None else {"prompt_logprobs": _prompt_logprobs(prompted)})


def completion_whole(request: CompletionRequest, answers: Sequence[Whole]) -> dict[str, Any]:
    """Return a completion without streaming.

    answers: `best_of` answers for each prompt, in the order of the prompts
    """
    groups = [answers[begin : begin + request.best_of] for begin in range(0, len(answers), request.best_of)]
    choices = [
        {"index": index, "finish_reason": _reason(answer.finish)}
        | _completed(request, answer.prompted, answer.content, answer.scores, 0)
        | receipt_fields(answer.finish)
        for index, answer in enumerate(answer for group in groups for answer in _best(group, request.count))
    ]
    head = _head(_id("cmpl"), "text_completion", int(time.time()), request.model)
    usage = _usage([answer.finish for answer in answers], len(request.prompts))
    return head | {"choices": choices, "usage": usage}


def _best(answers: Sequence[Whole], count: int) -> Sequence[Whole]:
    """Return the `count` answers with the most likely tokens on average. Empty answers come last."""
    if len(answers) == count:
        return answers

    def mean(answer: Whole) -> float:
        chosen = [score.chosen.logprob for score in answer.scores]
        return sum(chosen) / len(chosen) if chosen else -math.inf

    return sorted(answers, key=mean, reverse=True)[:count]


def _completed(
    request: CompletionRequest, prompted: Prompted | None, text: str, scores: Sequence[Score], begin: int
) -> dict[str, Any]:
    """Return the fields of a completion, or of a piece of one that begins at the character `begin`."""
    echoed = prompted if request.echoes else None
    said: dict[str, Any] = {"text": text if echoed is None else echoed.text + text}
    said["logprobs"] = _text_logprobs(scores, begin, echoed) if request.has_logprobs else None
    if request.has_prompt_logprobs and prompted is not None:
        said["prompt_logprobs"] = _prompt_logprobs(prompted)
    return said


def _prompt_logprobs(prompted: Prompted) -> Items:
    """Return the scores of a prompt's tokens in vLLM's form; the first token has none."""
    return Items([None, *prompted.scores], _by_id)


def _by_id(score: Score | None) -> dict[str, Any] | None:
    """Return the scores of a token and of the most likely tokens at its position, in vLLM's form."""
    if score is None:
        return None
    ranked = {each.token_id: rank for rank, each in enumerate(score.top or (), start=1)}
    return {
        str(each.token_id): {
            "logprob": each.logprob,
            "rank": ranked.get(each.token_id),
            "decoded_token": each.token,
        }
        for each in (score.chosen, *(score.top or ()))
    }


def embeddings(model: str, rows: npt.NDArray[np.float32], tokens: int, in_base64: bool) -> dict[str, Any]:
    """Return vectors, as numbers or as little-endian float32 bytes in base64."""

    def shown(place: tuple[int, npt.NDArray[np.float32]]) -> dict[str, object]:
        index, row = place
        vector = base64.b64encode(row.astype("<f4").tobytes()).decode() if in_base64 else row
        return {"object": "embedding", "embedding": vector, "index": index}

    data = Items(list(enumerate(rows)), shown)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _head(id: str, kind: str, created: int, model: str) -> dict[str, Any]:
    fingerprint = {"system_fingerprint": "fp_chaski"}
    return {"id": id, "object": kind, "created": created, "model": model, **fingerprint}


def _id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def _reason(finish: Finish, names_tool: bool = False) -> str:
    if finish.is_cut:
        return "length"
    return "tool_calls" if finish.called and not names_tool else "stop"


def _content(delta: Delta) -> str:
    return "".join(piece.text for piece in delta.pieces if isinstance(piece, Text))


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


def _usage(finishes: Sequence[Finish], num_prompts: int = 1) -> dict[str, Any]:
    """Return the token counts of all answers. A prompt that several answers share counts once."""
    firsts = finishes[:: len(finishes) // num_prompts]
    first, length = firsts[0], sum(each.done.prompt_tokens for each in firsts)
    generated = sum(finish.done.generated_tokens for finish in finishes)
    usage: dict[str, Any] = {
        "prompt_tokens": length,
        "completion_tokens": generated,
        "total_tokens": length + generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(each.done.cached_tokens for each in firsts),
            **cached_by_tier([each.done for each in firsts]),
        },
        "completion_tokens_details": {"reasoning_tokens": sum(finish.thought for finish in finishes)},
    }
    # Without these fields, a client could not see that tokens were left out of its prompt.
    dropped = (
        {"prompt_tokens_dropped": first.dropped, "context_length": first.context} if first.dropped else {}
    )
    return usage | dropped


def _chat_logprobs(scores: Sequence[Score]) -> dict[str, Any] | None:
    if not scores:
        return None
    return {"content": Items(scores, _shown_score)}


def shown_scores(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Return the scores of tokens, and of the most likely tokens at their positions."""
    return list(map(_shown_score, scores))


def _shown_score(score: Score) -> dict[str, Any]:
    return _shown(score.chosen) | {"top_logprobs": [_shown(each) for each in score.top or ()]}


def _shown(score: TopScore) -> dict[str, Any]:
    return {"token": score.token, "logprob": score.logprob, "bytes": list(score.data)}


def _text_logprobs(scores: Sequence[Score], begin: int, echoed: Prompted | None) -> dict[str, Any] | None:
    """Return the log-probabilities of tokens in the form of completions.

    begin: number of characters of the answer before these tokens
    echoed: the prompt, if it precedes them
    """
    first = None if echoed is None else echoed.first
    if echoed is not None:
        scores = [*echoed.scores, *scores]
    if not scores and first is None:
        return None
    # The special token that begins every text is not part of the text.
    is_written = first is not None and echoed is not None and echoed.text.startswith(first.token)
    begins = [] if first is None else [begin]
    begin += len(first.token) if first is not None and is_written else 0
    ends = accumulate((len(score.chosen.token) for score in scores), initial=begin)
    # Several tokens may have the same text; the most likely of them counts.
    top = [{each.token: each.logprob for each in reversed(score.top or ())} for score in scores]
    return {
        "tokens": [*([] if first is None else [first.token]), *(score.chosen.token for score in scores)],
        "token_logprobs": [*(None for _ in begins), *(score.chosen.logprob for score in scores)],
        "top_logprobs": [*(None for _ in begins), *top],
        "text_offset": [*begins, *list(ends)[: len(scores)]],
    }
