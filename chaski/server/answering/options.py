"""Ollama's `options`: checked by type, and divided into options of the answer and of loading."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from chaski.chat.adapter_choices import adapter_choices
from chaski.chat.options import GenerateOptions, parse_options
from chaski.errors import OptionError, SamplingError
from chaski.names import check_engine
from chaski.options import OPTIONS, REQUEST, Kind, names_of, nearest, none_below_zero

__all__ = ["KNOWN_OPTIONS", "RequestOptions", "checked_options", "named_as_given"]

_OPTION = re.compile(r"option (['\"]?)(\w+)\1|options (\w+) and (\w+)")

KNOWN_OPTIONS = frozenset(names_of(REQUEST))
"""The names that `checked_options` knows. `server/fields/audit.py` warns of others, or refuses them."""
_MAX_STOPS = 64
_MAX_BIASES = 4096
_GENERATE = GenerateOptions.__annotations__.keys()


@contextmanager
def named_as_given(given_as: Mapping[str, str]) -> Iterator[None]:
    """Let errors of options name the fields that gave them: `guided_regex`, not `option regex`."""

    def renamed(found: re.Match[str]) -> str:
        if found[2]:
            return given_as.get(found[2], found[0])
        if given_as.keys().isdisjoint(found.group(3, 4)):
            return found[0]
        return " and ".join(given_as.get(name, f"option {name}") for name in found.group(3, 4))

    try:
        yield
    except (OptionError, SamplingError) as error:
        if type(error) not in (OptionError, SamplingError):
            raise
        raise type(error)(_OPTION.sub(renamed, str(error))) from None


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
    generate = {name: none_below_zero(name, value) for name, value in generate.items()}
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
    """Return the value of an option after a check of its JSON type; None for one that has no effect."""
    if name not in KNOWN_OPTIONS:
        return None
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    match OPTIONS[name].kind:
        case Kind.INTEGER:
            _require(is_finite, name, "of type integer")
            return int(value)
        case Kind.NUMBER:
            _require(is_finite, name, "of type float32")
            return nearest(name, float(value))
        case Kind.FLAG:
            _require(isinstance(value, bool), name, "of type boolean")
            return None if name == "use_mmap" else value
        case Kind.TEXT:
            _require(isinstance(value, str), name, "of type string")
            return value or None
        case Kind.TEXTS:
            return _items(name, [value] if isinstance(value, str) else value, str, "strings")
        case Kind.TOKENS:
            return _items(name, value, int, "integers")
        case Kind.OTHER:
            return _other(name, value)


def _items(name: str, items: Any, kind: type, wanted: str) -> list[Any]:
    _require(isinstance(items, list), name, "of type array")
    _require(all(type(item) is kind for item in items), name, f"of an array of {wanted}")
    if name == "stop":
        _require(len(items) <= _MAX_STOPS, name, f"an array of at most {_MAX_STOPS} strings")
        return [text for text in items if text]
    return list(items)


def _other(name: str, value: Any) -> Any:
    match name:
        case "logit_bias":
            is_small = isinstance(value, Mapping) and len(value) <= _MAX_BIASES
            _require(is_small, name, f"an object of at most {_MAX_BIASES} tokens")
            return dict(value)
        case "adapter":
            return adapter_choices(value)
        case "engine":
            return check_engine(value)
        case _:
            return value


def _at_least_0(name: str, values: Mapping[str, Any]) -> int | None:
    value = values.get(name)
    if value is not None and value < 0:
        raise OptionError(f"option {name} is {value}; it must be at least 0")
    return value or None


def _require(condition: bool, name: str, wanted: str) -> None:
    if not condition:
        raise OptionError(f'option "{name}" must be {wanted}')
