"""Canonical JSON (RFC 8785, JSON Canonicalization Scheme): equal values have equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from chaski.errors import ReceiptError

__all__ = ["canonical_json"]

_LARGEST_WHOLE = 2**53
"""Above this, a double does not represent every whole number."""


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of a value that JSON can represent.

    Raises ReceiptError for numbers that are not finite or not exact as doubles, and for half of a surrogate
    pair.
    """
    try:
        return _text(value).encode()
    except UnicodeEncodeError:
        raise ReceiptError("a text contains half of a surrogate pair, which JSON cannot represent") from None
    except RecursionError:
        raise ReceiptError("the value is nested too deeply for JSON") from None


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, Mapping):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return f"{{{','.join(f'{_text(name)}:{_text(value[name])}' for name in names)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    raise ReceiptError(f"a value of type {type(value).__name__} has no canonical JSON")


def _number(value: float) -> str:
    """Return a number as ECMAScript writes it: the fewest digits that lead back to the same double."""
    if not math.isfinite(value) or (isinstance(value, int) and abs(value) > _LARGEST_WHOLE):
        raise ReceiptError(f"the number {value!r:.40} has no canonical JSON; write it as a text")
    if value == 0:
        return "0"
    _, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    assert isinstance(exponent, int), "it is finite"
    found, point = "".join(map(str, digits)), len(digits) + exponent
    sign = "-" if value < 0 else ""
    if len(found) <= point <= 21:
        return sign + found.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{found[:point]}.{found[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{found}"
    mantissa = found if len(found) == 1 else f"{found[0]}.{found[1:]}"
    return f"{sign}{mantissa}e{point - 1:+d}"
