"""Numbers of schemas. `llguidance` reads them as doubles, which must not change what a schema allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["check_exact", "check_multiple", "inward", "with_both_ends"]

_EXACT = 1 << 53
_LARGEST = 9 * 10**18
"""Bounds are read as integers of 64 bits."""
_ONE_SIDED = 10**17
"""A range without an end cannot begin above this."""
_MOST_DIGITS = (1 << 32) - 1


def check_exact(value: Any) -> None:
    """Raise ValueError for a constant with an integer that would become another one."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
        elif (
            isinstance(part, int)
            and abs(part) > _EXACT
            and (abs(part) > _LARGEST or int(float(part)) != part)
        ):
            raise ValueError(f"the integer {part!s:.40} cannot be written exactly; use a string for it")
        elif isinstance(part, float) and not math.isfinite(part):
            raise ValueError("a number is too large")


def inward(keyword: str, value: Any) -> Any:
    """Return a bound as a double that allows nothing more. Raises ValueError if there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) <= _EXACT:
        return value
    is_lower = "inimum" in keyword
    if abs(value) > _LARGEST:
        if (value > 0) == is_lower:
            raise ValueError(f"{keyword} is {value!s:.40}; the limit is {_LARGEST}")
        return _LARGEST if value > 0 else -_LARGEST
    found = float(value)
    if is_lower and found < value:
        found = math.nextafter(found, math.inf)
    elif not is_lower and found > value:
        found = math.nextafter(found, -math.inf)
    return int(found)


def with_both_ends(schema: dict[str, Any]) -> None:
    """Give a range that begins far from 0 an end, in place."""
    lower, upper = (
        [schema[key] for key in keys if isinstance(schema.get(key), int | float)]
        for keys in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    if lower and not upper and max(lower) > _ONE_SIDED:
        schema["maximum"] = _LARGEST
    if upper and not lower and min(upper) < -_ONE_SIDED:
        schema["minimum"] = -_LARGEST


def check_multiple(value: Any) -> None:
    """Raise ValueError for a divisor that would be read as another number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError("multipleOf must be a number above 0")
    digits = float(value)
    while math.isfinite(digits) and digits % 1 and digits <= _MOST_DIGITS:
        digits *= 10
    if digits > _MOST_DIGITS:
        raise ValueError(f"multipleOf {value!s:.40} cannot be followed exactly; leave it out")
