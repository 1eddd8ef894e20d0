"""Numbers of schemas. `llguidance` reads them as doubles, which must not change what a schema allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["check_exact", "check_multiple", "digits_between", "inward", "is_large", "with_both_ends"]

_EXACT = 1 << 53
_LARGEST = 9 * 10**18
"""Bounds are read as integers of 64 bits."""
_ONE_SIDED = 10**17
"""A range without an end cannot begin above this."""
_MOST_PLACES = 60
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


def is_large(value: Any) -> bool:
    """Return whether a value, or one inside of it, is an integer above 2**53."""
    if isinstance(value, list | tuple):
        return any(map(is_large, value))
    if isinstance(value, Mapping):
        return any(map(is_large, value.values()))
    return isinstance(value, int) and abs(value) > _EXACT


def inward(keyword: str, value: Any) -> Any:
    """Return a bound as a double that is at least as strict. Raises ValueError if no double is."""
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


def digits_between(least: int | None, most: int | None) -> str | None:
    """Return an expression for the integers from `least` to `most`; None for none, or for very long ones."""
    if any(bound is not None and abs(bound) >= 10**_MOST_PLACES for bound in (least, most)):
        return None
    options = []
    if least is None or least < 0:
        top = None if least is None else -least
        options += [f"-({found})" for found in _natural(max(1, -most if most is not None else 1), top)]
    if most is None or most >= 0:
        options += _natural(max(0, least or 0), most)
    return "|".join(options) or None


def _natural(least: int, most: int | None) -> list[str]:
    """Expressions for the integers from `least`, which is not negative, one for each number of digits."""
    found, first = [], str(least)
    for places in range(len(first), len(str(most)) + 1 if most is not None else len(first) + 1):
        low = first if places == len(first) else "1" + "0" * (places - 1)
        high = str(most) if most is not None and places == len(str(most)) else "9" * places
        found += [_same_places(low, high)] if low <= high else []
    return [*found, f"[1-9][0-9]{{{len(first)},}}"] if most is None else found


def _same_places(low: str, high: str) -> str:
    if not low or (set(low) == {"0"} and set(high) == {"9"}):
        return f"[0-9]{{{len(low)}}}" if low else ""
    if low[0] == high[0]:
        return low[0] + _same_places(low[1:], high[1:])
    rest = len(low) - 1
    options = [low[0] + _same_places(low[1:], "9" * rest), high[0] + _same_places("0" * rest, high[1:])]
    if int(high[0]) - int(low[0]) > 1:
        options.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]{{{rest}}}")
    return f"({'|'.join(options)})"
