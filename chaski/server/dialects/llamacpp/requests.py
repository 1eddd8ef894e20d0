"""Requests of /completion, /infill and /embedding of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError
from chaski.options import MAX_TOP_LOGPROBS, OPTIONS
from chaski.server.answering.requests import EmbedRequest, GenerateRequest
from chaski.server.answering.several import MAX_ANSWERS
from chaski.server.dialects.common.constraints import read_constraint
from chaski.server.dialects.common.images import check_images, read_base64
from chaski.server.dialects.common.sizes import MAX_PROMPTS, require_sendable
from chaski.server.dialects.llamacpp.lora import read_lora
from chaski.server.dialects.ollama import read_inputs, read_keep_alive
from chaski.server.fields.reader import Fields

__all__ = ["CompletionRequest", "Prompt", "read_completion", "read_embedding", "read_infill"]

_OPTIONS = {option.llama_cpp: name for name, option in OPTIONS.items() if option.llama_cpp}
_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
_MARKER = "<__media__>"
_FORMS = "a text, a list of tokens and texts, an object with prompt_string, or a list of these"
_BANNED = -100.0
"""The bias of a token that llama.cpp's `false` bans."""


class Prompt(Struct, frozen=True):
    """A prompt: a text with its images, or the tokens and texts of which it consists."""

    text: str = ""
    images: Sequence[bytes] = ()
    parts: Sequence[int | str] = ()


class CompletionRequest(Struct, frozen=True):
    """A request of /completion or /infill.

    asked    the request, without its prompt in /completion
    prompts  the prompts of /completion; none in /infill
    count    number of answers to each prompt
    returns_tokens  whether the reply contains the tokens of the answer
    shown    names of the fields of the reply; all if empty
    """

    asked: GenerateRequest
    prompts: Sequence[Prompt] = ()
    count: int = 1
    returns_tokens: bool = False
    shown: Sequence[str] = ()


def read_completion(body: Mapping[str, Any], model: str) -> CompletionRequest:
    """Read a request of /completion, whose prompts are used as they are. Raises OptionError."""
    fields = Fields(body)
    prompts = _prompts(fields.data.get("prompt"))
    count = fields.integer("n_cmpl" if fields.has("n_cmpl") else "n", 1)
    if not 1 <= count <= MAX_ANSWERS:
        raise OptionError(f"n_cmpl is {count}; it must be 1 to {MAX_ANSWERS}")
    require_sendable(fields, count, len(prompts))
    asked = GenerateRequest(prompt="", raw=True, truncate=False, shift=False, **_common(fields, model))
    return CompletionRequest(asked, prompts, count, *_shown(fields))


def read_infill(body: Mapping[str, Any], model: str) -> CompletionRequest:
    """Read a request of /infill. Raises OptionError."""
    fields = Fields(body)
    if not fields.has("input_prefix") or not fields.has("input_suffix"):
        raise OptionError("input_prefix and input_suffix are required")
    asked = GenerateRequest(
        prompt=fields.text("input_prefix"),
        suffix=fields.text("input_suffix"),
        begun=fields.text("prompt"),
        **_common(fields, model),
    )
    return CompletionRequest(asked, (), 1, *_shown(fields))


def read_embedding(body: Mapping[str, Any], model: str) -> tuple[EmbedRequest, int]:
    """Read a request of /embedding, and the norm by which the vectors are divided. Raises OptionError."""
    fields = Fields(body)
    inputs = read_inputs(fields, "input" if fields.has("input") else "content")
    if not inputs:
        raise OptionError("content or input is required")
    norm = fields.integer("embd_normalize", 2)
    request = EmbedRequest(
        model=model,
        inputs=inputs,
        normalize=norm == 2,
        truncate=fields.flag("truncate", True),
        keep_alive=read_keep_alive(fields),
    )
    return request, norm


def _common(fields: Fields, model: str) -> dict[str, Any]:
    """Read the fields that both requests share."""
    options = fields.options({theirs: ours for theirs, ours in _OPTIONS.items() if ours != "logit_bias"})
    if fields.has("logit_bias"):
        options["logit_bias"] = _biases(fields)
    constrained = read_constraint(fields, "format", None)
    given_as = {ours: theirs for theirs, ours in _OPTIONS.items() if ours != theirs}
    if name := next((name for name in _LIMITS if fields.has(name)), None):
        options["num_predict"] = fields.integer(name, -1)
        given_as["num_predict"] = name
    top = fields.integer("n_probs", 0)
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise OptionError(f"n_probs is {top}; it must be 0 to {MAX_TOP_LOGPROBS}")
    return {
        "model": model,
        "options": {**options, **constrained.options},
        "given_as": {**given_as, **constrained.given_as},
        "format": constrained.format,
        "logprobs": top > 0,
        "top_logprobs": top,
        "lora": read_lora(fields),
        "stream": fields.flag("stream", False),
        "keep_alive": read_keep_alive(fields),
    }


def _shown(fields: Fields) -> tuple[bool, list[str]]:
    """Read whether the reply contains tokens, and the names of its fields."""
    is_streamed = fields.flag("stream", False)
    return fields.flag("return_tokens", False) or is_streamed, fields.texts("response_fields")


def _biases(fields: Fields) -> dict[str, Any]:
    """Read `logit_bias`, an object or a list of pairs of a token and its bias, which is false for a ban."""
    value = fields.data["logit_bias"]
    pairs = value.items() if isinstance(value, dict) else fields.items("logit_bias")
    found = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise OptionError("logit_bias must be an object, or a list of pairs of a token id and a bias")
        token, bias = pair
        if not str(token).isdecimal():
            raise OptionError(f"logit_bias names the token {token!r:.80}; name it by its id, see /tokenize")
        found[str(token)] = _BANNED if bias is False else bias
    return found


def _prompts(value: Any) -> list[Prompt]:
    if not isinstance(value, list) or _has_tokens(value):
        return [_prompt(value)]
    if not value:
        raise OptionError(f"prompt is an empty list; it must be {_FORMS}")
    if len(value) > MAX_PROMPTS:
        raise OptionError(f"there are {len(value)} prompts; at most {MAX_PROMPTS} are allowed")
    return list(map(_prompt, value))


def _prompt(value: Any) -> Prompt:
    if value is None:
        raise OptionError("prompt is required")
    if isinstance(value, str):
        return Prompt(value)
    if isinstance(value, dict):
        return _with_media(Fields(value, "prompt"))
    if isinstance(value, list) and _has_tokens(value) and all(type(part) in (int, str) for part in value):
        return Prompt(parts=value)
    raise OptionError(f"prompt must be {_FORMS}")


def _has_tokens(items: Sequence[Any]) -> bool:
    return any(type(item) is int for item in items)


def _with_media(fields: Fields) -> Prompt:
    """Read a text and the files of images that stand where it has markers."""
    files, text = fields.texts("multimodal_data"), fields.text("prompt_string")
    images = [read_base64(data, f"multimodal_data[{place}]") for place, data in enumerate(files)]
    check_images([{"images": images}])
    first, *others = text.split(_MARKER) if images else [text]
    if len(others) != len(images):
        raise OptionError(
            f"prompt_string has {len(others)} times {_MARKER}, but multimodal_data has {len(images)} items"
        )
    return Prompt(first + "".join(f"[img-{n}]{text}" for n, text in enumerate(others)), images)
