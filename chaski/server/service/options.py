"""Ollama's `options`: checked by type, and divided into options of the answer and of loading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from chaski.chat.adapters import adapter_choices
from chaski.chat.options import GenerateOptions, parse_options
from chaski.errors import OptionError
from chaski.names import check_engine
from chaski.sample.options import nearest

__all__ = ["KNOWN_OPTIONS", "RequestOptions", "checked_options"]

_INTEGERS = {
    *("num_keep", "seed", "num_predict", "top_k", "repeat_last_n", "num_ctx", "num_batch", "num_gpu"),
    *("main_gpu", "num_thread", "draft_num_predict", "num_beams"),
    *("min_tokens", "dry_allowed_length", "dry_penalty_last_n"),
}
_FLOATS = {
    *("top_p", "min_p", "typical_p", "temperature"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("dry_multiplier", "dry_base", "top_n_sigma", "xtc_probability", "xtc_threshold", "length_penalty"),
}
_FLAGS = {"use_mmap", "no_store", "ignore_eos", "include_stop_str_in_output"}
# The runner checks their number.
_LISTS = {"bad_words": str, "dry_sequence_breakers": str, "choice": str, "stop_token_ids": int}
_TEXTS = {"regex", "grammar"}
KNOWN_OPTIONS = frozenset(
    {
        *_INTEGERS,
        *_FLOATS,
        *_FLAGS,
        *_LISTS,
        *_TEXTS,
        "stop",
        "logit_bias",
        "engine",
        "adapter",
        "early_stopping",
    }
)
"""The names that `checked_options` knows. `server/fields/audit.py` warns of others, or refuses them."""
# In Ollama any number below 0 means a fresh seed, or all tokens.
_NONE_BELOW_ZERO = {"seed", "repeat_last_n", "dry_penalty_last_n"}
_MAX_STOPS = 64
_MAX_BIASES = 4096
_GENERATE = GenerateOptions.__annotations__.keys()


class RequestOptions(Struct, frozen=True):
    """generate: options of a generation, as `chaski.runner` takes them. The others are for loading.

    gpus: `num_gpu` and `main_gpu`, where they are given.
    """

    generate: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None
    threads: int | None = None
    engine: str | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)


def checked_options(raw: Mapping[str, Any]) -> RequestOptions:
    """Check options; unknown ones are ignored. Raises OptionError or SamplingError."""
    values = {name: _typed(name, value) for name, value in raw.items() if value is not None}
    generate = {name: value for name, value in values.items() if name in _GENERATE and value is not None}
    for name in _NONE_BELOW_ZERO & generate.keys():
        generate[name] = None if generate[name] < 0 else generate[name]
    parse_options(generate)
    return RequestOptions(
        generate,
        _at_least_0("num_ctx", values),
        _at_least_0("num_thread", values),
        values.get("engine"),
        # In Ollama -1 leaves the choice to the server.
        {name: values[name] for name in ("num_gpu", "main_gpu") if values.get(name, -1) >= 0},
    )


def _typed(name: str, value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if name in _INTEGERS:
        _require(is_number, name, "of type integer")
        return int(value)
    if name in _FLOATS:
        _require(is_number, name, "of type float32")
        return nearest(name, float(value))
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        _require(isinstance(texts, list), name, "of type array")
        _require(all(isinstance(text, str) for text in texts), name, "of an array of strings")
        _require(len(texts) <= _MAX_STOPS, name, f"an array of at most {_MAX_STOPS} strings")
        return [text for text in texts if text]
    if name == "logit_bias":
        _require(
            isinstance(value, Mapping) and len(value) <= _MAX_BIASES,
            name,
            f"an object of at most {_MAX_BIASES} tokens",
        )
        return dict(value)
    if name == "adapter":
        return adapter_choices(value)
    if name == "engine":
        return check_engine(value)
    if name == "early_stopping":
        return value
    if name in _FLAGS:
        _require(isinstance(value, bool), name, "of type boolean")
        return None if name == "use_mmap" else value
    if name in _TEXTS:
        _require(isinstance(value, str), name, "of type string")
        return value or None
    if name in _LISTS:
        kind = _LISTS[name]
        items = [value] if isinstance(value, str) and kind is str else value
        _require(isinstance(items, list), name, "of type array")
        wanted = "strings" if kind is str else "integers"
        _require(all(type(item) is kind for item in items), name, f"of an array of {wanted}")
        return items
    return None


def _at_least_0(name: str, values: Mapping[str, Any]) -> int | None:
    value = values.get(name)
    if value is not None and value < 0:
        raise OptionError(f"option {name} is {value}; it must be at least 0")
    return value or None


def _require(condition: bool, name: str, wanted: str) -> None:
    if not condition:
        raise OptionError(f'option "{name}" must be {wanted}')
