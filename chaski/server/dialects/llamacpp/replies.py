"""Replies of /completion, /infill and /embedding of llama.cpp's server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from chaski.chat.events import Done, Text
from chaski.chat.options import AnswerOptions
from chaski.options import OPTIONS
from chaski.sample import SamplingOptions
from chaski.server.answering.events import Delta, Finish, Score, TopScore
from chaski.server.dialects.common.cached import cached_by_tier
from chaski.server.dialects.llamacpp.requests import CompletionRequest

__all__ = ["Completions", "embedding_list", "settings_of"]

_INT16 = 32760.0
"""The largest absolute value of a vector that is divided by its maximum, norm 0."""


class _Written(Struct):
    """The answer so far; its parts only if the reply is whole.

    prompt      text of the prompt if it was given as tokens
    num_tokens  number of tokens, and `has_new_line` whether there is a line break among them
    """

    prompt: str | None = None
    num_tokens: int = 0
    has_new_line: bool = False
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)


class Completions:
    """The replies to a request of /completion or /infill, in pieces or whole.

    settings: options of the model and of the request, as `settings_of` returns them
    """

    def __init__(self, request: CompletionRequest, settings: Mapping[str, Any]) -> None:
        self._request = request
        self._settings = settings
        self._written: defaultdict[int, _Written] = defaultdict(_Written)

    def piece(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """Return an event of the stream; None for a delta without text. `index`: number of the answer."""
        written = self._written[index]
        if delta.prompted is not None:
            written.prompt = delta.prompted.text
        text = "".join(piece.text for piece in delta.pieces if isinstance(piece, Text))
        tokens = [token for piece in delta.pieces for token in piece.token_ids]
        written.num_tokens += len(tokens)
        written.has_new_line = written.has_new_line or "\n" in text
        if not self._request.asked.stream:
            written.texts.append(text)
            written.tokens += tokens
            written.scores += delta.scores
        if not delta.pieces and not delta.scores:
            return None
        found = {"index": index, "content": text, "tokens": tokens, "stop": False, "id_slot": -1}
        counts = {"tokens_predicted": written.num_tokens, "tokens_evaluated": delta.prompt_tokens}
        return found | counts | _probabilities(delta.scores)

    def end(self, index: int, finish: Finish) -> dict[str, Any]:
        """Return the last event of a stream, which has no content, or the whole answer."""
        request, written, done = self._request, self._written[index], finish.done
        is_full = done.prompt_tokens + done.generated_tokens >= finish.context
        found = {
            "index": index,
            "content": "".join(written.texts),
            "tokens": written.tokens if request.returns_tokens else [],
            "id_slot": -1,
            "stop": True,
            "model": request.asked.model,
            "tokens_predicted": done.generated_tokens,
            "tokens_evaluated": done.prompt_tokens,
            "generation_settings": {"n_ctx": finish.context, **self._settings},
            **self._prompt(index, written),
            "has_new_line": written.has_new_line,
            "truncated": finish.dropped > 0 or (finish.is_cut and is_full),
            "stop_type": "word" if done.stop_string else "limit" if finish.is_cut else "eos",
            "stopping_word": done.stop_string or "",
            "tokens_cached": done.cached_tokens,
            **cached_by_tier([done]),
            "timings": _timings(done),
            **_probabilities(written.scores),
        }
        return _chosen(found, request.shown) if request.shown else found

    def _prompt(self, index: int, written: _Written) -> dict[str, str]:
        """Return the prompt of an answer. That of /infill is known to the model's process only."""
        if written.prompt is not None:
            return {"prompt": written.prompt}
        prompts = self._request.prompts
        return {"prompt": prompts[index // self._request.count].text} if prompts else {}


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options that /completion takes under its names, with the defaults of those not given."""
    return {
        option.llama_cpp: _shown(options.get(name, _default(name)))
        for name, option in OPTIONS.items()
        if option.llama_cpp
    }


def embedding_list(rows: npt.NDArray[np.float32], norm: int) -> list[dict[str, Any]]:
    """Return the reply of /embedding.

    rows: the vectors, (n, size)
    norm: 2 for vectors of length 1, which `rows` are already; below 0 for none; 0 for the maximum norm
    """
    if norm == 0:
        rows = _divided(rows, np.abs(rows).max(-1) / _INT16)
    elif norm > 0 and norm != 2:
        rows = _divided(rows, (np.abs(rows.astype(np.float64)) ** norm).sum(-1) ** (1 / norm))
    return [{"index": index, "embedding": row[None]} for index, row in enumerate(rows)]


def _divided(rows: npt.NDArray[np.float32], sizes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.asarray(rows / np.where(sizes > 0, sizes, 1)[:, None], np.float32)


def _default(name: str) -> Any:
    options = AnswerOptions() if name in AnswerOptions.__struct_fields__ else SamplingOptions()
    return getattr(options, name)


def _shown(value: Any) -> Any:
    """Return a value of an option as llama.cpp shows it: -1 where it is not limited or chosen."""
    return -1 if value is None else list(value) if isinstance(value, tuple) else value


def _chosen(reply: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return some fields of a reply; `a/b` is the field `b` of `a`, which becomes a field of the reply."""
    found: dict[str, Any] = {}
    for name in names:
        value: Any = reply
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[name.rpartition("/")[2]] = value
    return found


def _probabilities(scores: Sequence[Score]) -> dict[str, Any]:
    if not scores:
        return {}
    found = [{**_token(score.chosen), "top_logprobs": list(map(_token, score.top or ()))} for score in scores]
    return {"completion_probabilities": found}


def _token(score: TopScore) -> dict[str, Any]:
    return {"id": score.token_id, "token": score.token, "bytes": list(score.data), "logprob": score.logprob}


def _timings(done: Done) -> dict[str, Any]:
    return {
        "cache_n": done.cached_tokens,
        **_rate("prompt", done.evaluated_tokens, done.prefill_seconds),
        **_rate("predicted", done.generated_tokens, done.decode_seconds),
        **(
            {"draft_n": done.proposed_tokens, "draft_n_accepted": done.accepted_tokens}
            if done.proposed_tokens
            else {}
        ),
    }


def _rate(name: str, count: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / count if count else 0.0,
        f"{name}_per_second": count / seconds if seconds else 0.0,
    }
