"""OpenAI's API: its requests to wishes, events to its objects. Tool calls go out whole, one a chunk."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.durations import parse_duration
from chaski.errors import OptionError, UnsupportedError
from chaski.server.events import Delta, Finish, Score, TopScore, Whole
from chaski.server.fields import Fields
from chaski.server.wishes import ChatWish, EmbedWish, GenerateWish
from chaski.text.parsers import Content, Thinking, ToolCall

__all__ = [
    "Chunks",
    "chat_whole",
    "completion_whole",
    "embeddings",
    "includes_usage",
    "read_chat",
    "read_completion",
    "read_count",
    "read_embeddings",
]

MAX_ANSWERS = 16
_EFFORTS: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "ultra": "max",
    "max": "max",
}
# Options of Ollama that people need and this API has no name for are taken under their own names.
_PLAIN_OPTIONS = ("top_k", "min_p", "num_ctx", "repeat_penalty", "repeat_last_n", "typical_p", "num_keep")
_PLAIN_OPTIONS_OF_OPENAI = ("seed", "frequency_penalty", "presence_penalty")


def read_chat(body: Mapping[str, Any]) -> ChatWish:
    """A request of /v1/chat/completions. Raises OptionError or UnsupportedError."""
    fields = Fields(body)
    messages = _messages(fields)
    if not messages:
        raise OptionError("[] is too short - 'messages'")
    return ChatWish(
        messages=messages,
        tools=[dict(tool.data) for tool in fields.objects("tools")],
        tool_choice=_tool_choice(fields.data.get("tool_choice")),
        parallel_calls=fields.flag("parallel_tool_calls", True),
        drops_think=True,
        think=_effort(fields),
        logprobs=fields.flag("logprobs", False),
        top_logprobs=_top(fields.integer("top_logprobs", 0)),
        **_common(fields),
    )


def read_completion(body: Mapping[str, Any]) -> GenerateWish:
    """A request of /v1/completions. The prompt goes through the model's template, as in Ollama."""
    fields = Fields(body)
    top = fields.integer("logprobs", None)
    return GenerateWish(
        prompt=fields.text("prompt"),
        suffix=fields.text("suffix"),
        logprobs=top is not None,
        top_logprobs=_top(top or 0),
        **_common(fields),
    )


def read_count(body: Mapping[str, Any]) -> int:
    """How many answers are wanted. Raises OptionError."""
    count: int = Fields(body).integer("n", 1)
    if not 1 <= count <= MAX_ANSWERS:
        raise OptionError(f"n must be 1 to {MAX_ANSWERS}")
    return count


def read_embeddings(body: Mapping[str, Any]) -> tuple[EmbedWish, bool]:
    """A request of /v1/embeddings, and whether vectors are wanted in base64."""
    from chaski.server.dialects.ollama import read_inputs

    fields = Fields(body)
    encoding = fields.text("encoding_format", default="float")
    if encoding not in ("float", "base64"):
        raise OptionError(
            f"Invalid value for 'encoding_format' = {encoding:.40}. Supported values: ['float', 'base64']."
        )
    inputs = read_inputs(fields, "input")
    if not inputs:
        raise OptionError("invalid input")
    dimensions = fields.integer("dimensions", None)
    if dimensions is not None and dimensions < 1:
        raise OptionError("dimensions must be at least 1")
    wish = EmbedWish(model=fields.text("model"), inputs=inputs, dimensions=dimensions)
    return wish, encoding == "base64"


def includes_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with counts."""
    return Fields(Fields(body).mapping("stream_options"), "stream_options").flag("include_usage", False)


@dataclass(slots=True)
class Chunks:
    """The chunks of one stream: they share an id and a time. `is_chat`: chat, else a text completion."""

    model: str
    is_chat: bool
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    _begun: set[int] = field(default_factory=set)
    _calls: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = self.id or _id("chatcmpl" if self.is_chat else "cmpl")

    def delta(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """Chunks for what is new in answer `index`: thinking and content apart."""
        if not self.is_chat:
            text = _content(delta)
            return [self._chunk(index, {"text": text, "logprobs": _text_logprobs(delta.scores)}, None)]
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
        return [_call(begin + number, call) for number, call in enumerate(calls)]

    def _chunk(self, index: int, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return self._head() | {"choices": [{"index": index, **said, "finish_reason": reason}]}

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return _head(self.id, kind, self.created, self.model)


def chat_whole(model: str, answers: Sequence[Whole]) -> dict[str, Any]:
    """A chat without stream."""
    choices = [
        {
            "index": index,
            "message": _message_of(answer),
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
            "logprobs": _text_logprobs(answer.scores),
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


def _common(fields: Fields) -> dict[str, Any]:
    if bias := fields.mapping("logit_bias"):
        raise UnsupportedError(f"logit_bias is not supported by this version ({len(bias)} tokens)")
    return {
        "model": fields.text("model"),
        "options": _options(fields),
        "stream": fields.flag("stream", False),
        "format": _format(Fields(fields.mapping("response_format"), "response_format")),
        "keep_alive": parse_duration(fields.data["keep_alive"]) if fields.has("keep_alive") else None,
    }


def _options(fields: Fields) -> dict[str, Any]:
    options = dict(fields.mapping("options"))
    names = (*_PLAIN_OPTIONS, *_PLAIN_OPTIONS_OF_OPENAI)
    options |= {name: fields.number(name, None) for name in names if fields.has(name)}
    options |= {name: fields.number(name, 1.0) for name in ("temperature", "top_p")}
    limit = fields.integer("max_completion_tokens", None) or fields.integer("max_tokens", None)
    if limit is not None:
        if limit < 0:
            raise OptionError("max_tokens must be at least 1")
        options["num_predict"] = limit
    if stops := fields.texts("stop"):
        options["stop"] = stops
    return options


def _format(fields: Fields) -> Any:
    kind = fields.text("type", default="text")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        schema = Fields(fields.mapping("json_schema"), "json_schema").mapping("schema")
        if not schema:
            raise OptionError("response_format.json_schema.schema is missing")
        return schema
    raise OptionError(f"response_format.type {kind!r:.40} must be text, json_object or json_schema")


def _effort(fields: Fields) -> bool | str | None:
    effort = fields.text("reasoning_effort") or Fields(fields.mapping("reasoning"), "reasoning").text(
        "effort"
    )
    if effort and effort not in _EFFORTS:
        raise OptionError(f"reasoning effort {effort!r:.40} must be one of {', '.join(_EFFORTS)}")
    return _EFFORTS[effort] if effort else None


def _top(count: int) -> int:
    if not 0 <= count <= 20:
        raise OptionError("top_logprobs must be between 0 and 20")
    return count


def _tool_choice(choice: Any) -> str:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise OptionError(f"tool_choice {choice!r:.40} must be none, auto, required or a function")
        return choice
    named = Fields(Fields(choice, "tool_choice").mapping("function"), "tool_choice.function").text("name")
    if not named:
        raise OptionError("tool_choice.function.name is missing")
    return named


def _messages(fields: Fields) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    for message in fields.objects("messages"):
        found.append(_message(message, names))
    return found


def _message(fields: Fields, names: dict[str, str]) -> dict[str, Any]:
    """A message in Ollama's form. `names` remembers by their ids which tools were called."""
    role = {"developer": "system"}.get(fields.text("role"), fields.text("role"))
    if role not in ("system", "user", "assistant", "tool"):
        raise OptionError(f"role {role!r:.40} must be system, developer, user, assistant or tool")
    found: dict[str, Any] = {"role": role, "content": _text(fields)}
    if thinking := fields.text("reasoning", "reasoning_content"):
        found["thinking"] = thinking
    calls = [_read_call(call) for call in fields.objects("tool_calls")]
    if calls:
        found["tool_calls"] = calls
        names |= {call["id"]: call["function"]["name"] for call in calls}
    if call_id := fields.text("tool_call_id"):
        found |= {"tool_call_id": call_id, "tool_name": fields.text("name") or names.get(call_id, "")}
    return found


def _text(fields: Fields) -> str:
    """The text of a message; parts that are texts are joined."""
    if not isinstance(fields.data.get("content"), list):
        return fields.text("content")
    texts = []
    for part in fields.objects("content"):
        kind = part.text("type")
        if kind not in ("text", "refusal"):
            raise UnsupportedError(
                f"content of type {kind!r:.40} is not supported by this version; only text is"
            )
        texts.append(part.text(kind))
    return "\n".join(texts)


def _read_call(fields: Fields) -> dict[str, Any]:
    function = Fields(fields.mapping("function"), "function")
    try:
        arguments = json.loads(function.text("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise OptionError("invalid tool call arguments")
    return {"id": fields.text("id"), "function": {"name": function.text("name"), "arguments": arguments}}


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


def _message_of(answer: Whole) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.thinking:
        message["reasoning"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [_call(index, call) for index, call in enumerate(answer.calls)]
        message["content"] = answer.content or None
    return message


def _call(index: int, call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "index": index, "type": "function", "function": function}


def _usage(finishes: Sequence[Finish]) -> dict[str, Any]:
    """Counts of all answers; their common prompt counts once."""
    first = finishes[0]
    generated = sum(finish.done.generated_tokens for finish in finishes)
    usage: dict[str, Any] = {
        "prompt_tokens": first.done.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": first.done.prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": first.done.cached_tokens},
    }
    # What a client cannot see otherwise: how much of its prompt was left out.
    dropped = (
        {"prompt_tokens_dropped": first.dropped, "context_length": first.context} if first.dropped else {}
    )
    return usage | dropped


def _chat_logprobs(scores: Sequence[Score]) -> dict[str, Any] | None:
    if not scores:
        return None
    return {
        "content": [
            _shown(score.chosen) | {"top_logprobs": [_shown(each) for each in score.top or ()]}
            for score in scores
        ]
    }


def _shown(score: TopScore) -> dict[str, Any]:
    return {"token": score.token, "logprob": score.logprob, "bytes": list(score.data)}


def _text_logprobs(scores: Sequence[Score]) -> dict[str, Any] | None:
    if not scores:
        return None
    return {
        "tokens": [score.chosen.token for score in scores],
        "token_logprobs": [score.chosen.logprob for score in scores],
        "top_logprobs": [{each.token: each.logprob for each in score.top or ()} for score in scores],
        "text_offset": [],
    }
