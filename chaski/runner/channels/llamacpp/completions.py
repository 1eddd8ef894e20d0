"""Translation of requests and answers: chaski requests become llama.cpp's JSON, and its pieces become events.

A piece contains the text of a token and its id. If a character takes several tokens, llama.cpp reports only
the last id; `LostIds` finds the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.chat.events import Done, DoneReason, Event, Text
from chaski.chat.prompts import Prepared
from chaski.errors import UnsupportedError
from chaski.runner.channels.llamacpp.images import prompt_field
from chaski.runner.channels.llamacpp.lost_ids import LostIds
from chaski.runner.generation.stream import PieceStream, TokenText
from chaski.sample import Sampled, TokenLogprob
from chaski.sample.grammar import checked_grammar

__all__ = ["AnswerReader", "completion", "empty_answer"]

_SAMPLERS = (*("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),)
_MISSING = ("min_tokens", "stop_token_ids", "include_stop_str_in_output", "bad_words", "receipt")
_SEEDS = 2**32 - 1  # the largest number requests a fresh seed


def completion(
    prepared: Prepared, prefix_cache: bool, controls: Mapping[str, int], marker: str = ""
) -> dict[str, Any]:
    """Return the request. controls: tokens that no text is made of, by spelling. marker: stands for an image.

    Raises OptionError, or UnsupportedError for what llama.cpp cannot do.
    """
    limits, sampling = prepared.limits, prepared.sampling
    for name in _MISSING:
        if getattr(limits, name):
            raise UnsupportedError(f"the engine llama.cpp does not know option {name}; leave it out")
    if limits.is_search:
        raise UnsupportedError("the engine llama.cpp has no beam search; leave out option num_beams")
    if limits.prompt_logprobs is not None:
        raise UnsupportedError("the engine llama.cpp does not return log-probabilities of prompts")
    return {
        "prompt": prompt_field(prepared.prompt, marker),
        "n_predict": prepared.limit - len(prepared.prompt.tokens),
        "n_keep": prepared.num_keep or 0,
        "stop": list(limits.stop),
        "stream": True,
        "return_tokens": True,
        "cache_prompt": prefix_cache,
        "samplers": list(_SAMPLERS),
        "temperature": max(sampling.temperature, 0),
        "top_k": max(sampling.top_k, 0),
        "top_p": min(max(sampling.top_p, 0), 1),
        "min_p": min(max(sampling.min_p, 0), 1),
        "typical_p": min(max(sampling.typical_p, 0), 1),
        **_repeat_penalty(prepared),
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **(_dry(prepared) if sampling.has_dry else {}),
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "ignore_eos": limits.ignore_eos,
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
        "seed": -1 if sampling.seed is None else sampling.seed % _SEEDS,
        "n_probs": max(sampling.top_logprobs, 1) if sampling.logprobs else 0,
        **_grammar(prepared, controls),
    }


def _repeat_penalty(prepared: Prepared) -> dict[str, Any]:
    """Return the penalty fields. llama.cpp has one penalty of this kind, and one window for all penalties."""
    sampling = prepared.sampling
    window, penalty = sampling.repeat_last_n, sampling.repeat_penalty
    if sampling.repetition_penalty != 1:
        if sampling.has_penalties:
            raise UnsupportedError(
                "the engine llama.cpp cannot use option repetition_penalty together with repeat_penalty, "
                "presence_penalty or frequency_penalty; give one of them"
            )
        window, penalty = None, sampling.repetition_penalty
    return {"repeat_last_n": _window(prepared, window), "repeat_penalty": penalty}


def _window(prepared: Prepared, window: int | None) -> int:
    """Return the number of recent tokens that penalties cover. llama.cpp cannot cover all tokens, and
    allocates memory for each one.
    """
    most = prepared.limit if prepared.num_keep is None else min(prepared.limit, prepared.context)
    return most if window is None else min(window, most)


def _dry(prepared: Prepared) -> dict[str, Any]:
    sampling = prepared.sampling
    return {
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": _window(prepared, sampling.dry_penalty_last_n),
        "dry_sequence_breakers": list(prepared.limits.dry_sequence_breakers),
    }


def _grammar(prepared: Prepared, controls: Mapping[str, int]) -> dict[str, Any]:
    limits = prepared.limits
    if limits.constraint is None:
        return {}
    if limits.ignore_eos:  # after the end of the grammar, the text would be unconstrained
        raise UnsupportedError(
            "the engine llama.cpp cannot use option ignore_eos together with a format; leave it out"
        )
    # llama.cpp silently ignores grammars that it cannot compile.
    return {"grammar": checked_grammar(limits.constraint, limits.format_thought, controls)}


def empty_answer(prepared: Prepared, load_seconds: float) -> Done:
    """Return the answer without tokens, which llama.cpp cannot produce."""
    return Done(
        reason="length",
        prompt_tokens=len(prepared.prompt.tokens),
        cached_tokens=0,
        generated_tokens=0,
        dropped_tokens=prepared.dropped,
        load_seconds=load_seconds,
        prefill_seconds=0.0,
        decode_seconds=0.0,
    )


class AnswerReader:
    """Converts the pieces of one answer to events.

    controls: the texts of tokens that are not part of answers. lost: finds ids that are not reported.
    """

    def __init__(
        self,
        prepared: Prepared,
        controls: Mapping[int, str],
        lost: LostIds,
        load_seconds: float,
    ) -> None:
        self._prepared = prepared
        self._controls = controls
        self._lost = lost
        self._load_seconds = load_seconds
        self._pieces = PieceStream(())
        self._count = 0
        # A control token is held back until it is known whether it ends the answer.
        self._held: tuple[str, Sampled] | None = None

    def feed(self, piece: Mapping[str, Any]) -> list[Event]:
        """Return the events of a piece; the very last one is `Done`."""
        if piece["stop"]:
            return self._end(piece)
        events = self._release()
        ids, text = piece["tokens"], piece["content"]
        missing = piece["tokens_predicted"] - self._count - len(ids)
        self._count = piece["tokens_predicted"]
        is_held = bool(self._prepared.limits.stop)
        for token_id in self._lost.before(text, ids[0], missing, is_held) if len(ids) == 1 else ():
            events += self._fed(TokenText("", Sampled(token_id)))
        for sampled in _sampled(piece, self._prepared.sampling.logprobs):
            if sampled.token_id in self._controls:
                self._held = (text, sampled)
            else:
                events += self._fed(TokenText(text, sampled))
        return events

    def _fed(self, piece: TokenText) -> list[Event]:
        event, _ = self._pieces.feed(piece)
        return [] if event is None else [event]

    def _release(self) -> list[Event]:
        """Return the event of the control token that was held back, since it did not end the answer."""
        if self._held is None:
            return []
        (text, sampled), self._held = self._held, None
        if not self._prepared.limits.special:
            text = text.removesuffix(self._controls[sampled.token_id])
        return self._fed(TokenText(text, sampled))

    def _end(self, piece: Mapping[str, Any]) -> list[Event]:
        kind, tail = piece["stop_type"], ""
        events: list[Event] = []
        if kind == "eos" and self._held is not None:
            text, sampled = self._held
            tail = text.removesuffix(self._controls[sampled.token_id])
        else:
            events += self._release()
        if kind != "word":
            last: Text | None = self._pieces.flush(tail)
            events += [] if last is None else [last]
        return [*events, self._done(piece, "length" if kind == "limit" else "stop")]

    def _done(self, piece: Mapping[str, Any], reason: DoneReason) -> Done:
        times, generated = piece["timings"], piece["tokens_predicted"]
        prompt = len(self._prepared.prompt.tokens)
        # llama.cpp does not compute the last token.
        left = prompt + generated - 1 - piece["tokens_cached"] if piece["truncated"] else 0
        return Done(
            reason=reason,
            stop_string=piece["stopping_word"] if piece["stop_type"] == "word" else None,
            prompt_tokens=prompt,
            cached_tokens=max(times["cache_n"], 0),
            generated_tokens=generated,
            dropped_tokens=self._prepared.dropped,
            shifted_tokens=max(left, 0),
            load_seconds=self._load_seconds,
            prefill_seconds=times["prompt_ms"] / 1e3,
            decode_seconds=times["predicted_ms"] / 1e3,
        )


def _sampled(piece: Mapping[str, Any], wants_logprobs: bool) -> list[Sampled]:
    if not wants_logprobs:
        return [Sampled(token_id) for token_id in piece["tokens"]]
    return [
        Sampled(
            token_id,
            scores["logprob"],
            tuple(TokenLogprob(top["id"], top["logprob"]) for top in scores["top_logprobs"]),
        )
        for token_id, scores in zip(piece["tokens"], piece.get("completion_probabilities", ()), strict=True)
    ]
