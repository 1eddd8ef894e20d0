"""The parameters that a model may have, and reading them from text.

They are settings under Ollama's names. What an engine makes of them is decided above.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from chaski.errors import ModelfileError

__all__ = ["DEPRECATED", "LISTS", "Parameter", "parse_parameter"]

Parameter: TypeAlias = "int | float | bool | str | list[str]"

# Ollama takes these words for the truth values, and no others.
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


_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(
        (
            "num_ctx",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "num_thread",
            "num_keep",
            "num_predict",
            "draft_num_predict",
            "repeat_last_n",
            "seed",
            "top_k",
            "min_tokens",
            "dry_allowed_length",
            "dry_penalty_last_n",
        ),
        ("int", int),
    ),
    **dict.fromkeys(
        (
            "temperature",
            "top_p",
            "min_p",
            "typical_p",
            "repeat_penalty",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "dry_multiplier",
            "dry_base",
            "top_n_sigma",
            "xtc_probability",
            "xtc_threshold",
        ),
        ("float", _finite),
    ),
    **dict.fromkeys(
        ("use_mmap", "no_store", "ignore_eos", "include_stop_str_in_output"), ("bool", _TRUTH.__getitem__)
    ),
    **dict.fromkeys(("stop", "bad_words", "dry_sequence_breakers"), ("string", str)),
    "engine": ("engine", _engine),
}
LISTS = frozenset({"stop", "bad_words", "dry_sequence_breakers"})
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
    """The value of a parameter from its text. Raises ModelfileError for an unknown name or a bad value."""
    if name not in _KINDS:
        raise ModelfileError(f"unknown parameter '{name}'")
    kind, read = _KINDS[name]
    try:
        value: Parameter = read(text)
    except (ValueError, KeyError):
        raise ModelfileError(f"parameter {name}: invalid {kind} value [{text}]") from None
    return value
