"""Durations in the notation of Go and Ollama: `5m`, `1h30m`, `-1`, or a number of seconds."""

from __future__ import annotations

import math
import re

from chaski.errors import OptionError

__all__ = ["parse_duration"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(ns|us|µs|μs|ms|s|m|h)")
_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{0,18})?")


def parse_duration(value: object) -> float:
    """Parse a duration into seconds. A negative duration means forever, `math.inf`.

    A number, or a text that contains one, means seconds. Other texts follow Go's `time.ParseDuration`. Raises
    OptionError with Ollama's wording.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise OptionError(f"Unsupported type: '{type(value).__name__}'")
    seconds = _seconds(value.strip()) if isinstance(value, str) else _finite(value)
    return math.inf if seconds < 0 else seconds


def _finite(value: float) -> float:
    if math.isnan(value):
        raise OptionError("time: invalid duration: not a number")
    return float(max(-1.0, min(value, math.inf)))


def _seconds(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    digits = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    total, position = 0.0, 0
    while match := _PART.match(digits, position):
        total += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    if not digits or position != len(digits):
        raise OptionError(f'time: invalid duration "{text:.60}"')
    return -total if text.startswith("-") else total
