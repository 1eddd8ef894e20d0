"""Requests and replies that only llama.cpp's server defines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.chat.events import Text
from chaski.errors import OptionError
from chaski.options import OPTIONS
from chaski.server.answering.events import Delta, Finish
from chaski.server.answering.requests import GenerateRequest
from chaski.server.dialects.common.cached import cached_by_tier
from chaski.server.dialects.ollama import read_keep_alive
from chaski.server.fields.reader import Fields

__all__ = ["infill_end", "infill_piece", "read_infill", "read_lora", "read_scales"]

_OPTIONS = {option.infill: name for name, option in OPTIONS.items() if option.infill}


def read_infill(body: Mapping[str, Any], model: str) -> GenerateRequest:
    """Read a request of /infill. Raises OptionError."""
    fields = Fields(body)
    if not fields.has("input_prefix") or not fields.has("input_suffix"):
        raise OptionError("input_prefix and input_suffix are required")
    return GenerateRequest(
        model=model,
        prompt=fields.text("input_prefix"),
        suffix=fields.text("input_suffix"),
        begun=fields.text("prompt"),
        options=fields.options(_OPTIONS),
        given_as={ours: theirs for theirs, ours in _OPTIONS.items() if ours != theirs},
        lora=read_lora(fields),
        stream=fields.flag("stream", False),
        keep_alive=read_keep_alive(fields),
    )


def read_lora(fields: Fields) -> list[tuple[int, float]] | None:
    """Return the numbers and scales of a request's adapters, without those of scale 0; None if not given.

    Raises OptionError.
    """
    if not fields.has("lora"):
        return None
    return [(number, scale) for number, scale in read_scales(fields, "lora") if scale]


def read_scales(fields: Fields, name: str) -> list[tuple[int, float]]:
    """Read a list of objects with `id` and `scale`. Raises OptionError."""
    found = []
    for each in fields.objects(name):
        number, scale = each.integer("id", None), each.number("scale", None)
        if number is None or scale is None:
            raise OptionError(f"{each.where} must contain id and scale")
        found.append((number, scale))
    if len(dict(found)) < len(found):
        raise OptionError(f"{name} lists an adapter twice")
    return found


def infill_piece(delta: Delta) -> dict[str, Any]:
    """Return an event of the stream."""
    text = "".join(piece.text for piece in delta.pieces if isinstance(piece, Text))
    return {"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": -1}


def infill_end(model: str, content: str, finish: Finish) -> dict[str, Any]:
    """Return the answer, or the last event of the stream, which has no content."""
    done = finish.done
    stopped = "word" if done.stop_string else "limit" if finish.is_cut else "eos"
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "stop": True,
        "id_slot": -1,
        "model": model,
        "tokens_predicted": done.generated_tokens,
        "tokens_evaluated": done.prompt_tokens,
        "tokens_cached": done.cached_tokens,
        **cached_by_tier([done]),
        "truncated": finish.dropped > 0,
        "stop_type": stopped,
        "stopping_word": done.stop_string or "",
        "timings": {
            "prompt_n": done.evaluated_tokens,
            "prompt_ms": done.prefill_seconds * 1e3,
            "predicted_n": done.generated_tokens,
            "predicted_ms": done.decode_seconds * 1e3,
        },
    }
