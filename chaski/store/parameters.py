"""The parameters that a model may set, and their text parser.

Parameters have Ollama's names. Higher layers interpret them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from chaski.errors import ModelfileError
from chaski.options import MODELFILE, OPTIONS, Kind, names_of
from chaski.suggestions import suggestion

__all__ = ["DEPRECATED", "LISTS", "Parameter", "parse_parameter"]

Parameter: TypeAlias = "int | float | bool | str | list[int | float | bool | str]"

# Ollama accepts only these words as booleans.
_TRUTH = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _engine(text: str) -> str:
    if text not in ("native", "llama.cpp"):
        raise ValueError(text)
    return text


_READERS: Mapping[Kind, tuple[str, Callable[[str], Any]]] = {
    Kind.INTEGER: ("int", int),
    Kind.TOKENS: ("int", int),
    Kind.NUMBER: ("float", _finite),
    Kind.FLAG: ("bool", _TRUTH.__getitem__),
    Kind.TEXT: ("string", str),
    Kind.TEXTS: ("string", str),
}
_NAMES = frozenset(names_of(MODELFILE))
LISTS = frozenset(names_of(MODELFILE, Kind.TEXTS, Kind.TOKENS))
DEPRECATED = frozenset(
    {
        "penalize_newline",
        "low_vram",
        "f16_kv",
        "logits_all",
        "vocab_only",
        "use_mlock",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "tfs_z",
        "numa",
    }
)


def parse_parameter(name: str, text: str) -> Parameter:
    """Parse the value of a parameter. Raises ModelfileError for an unknown name or an invalid value."""
    if name not in _NAMES:
        question = suggestion(name, _NAMES)
        raise ModelfileError(f"unknown parameter '{name:.100}'" + (f"; {question}" if question else ""))
    kind, read = ("engine", _engine) if name == "engine" else _READERS[OPTIONS[name].kind]
    try:
        value: Parameter = read(text)
    except (ValueError, KeyError):
        raise ModelfileError(f"parameter {name}: invalid {kind} value [{text}]") from None
    return value
