"""JSON of strangers: bounded by how many values it may have, before any of them is made.

Python takes up to eighty bytes for a value that is written with two, so a file or a body of 60 MB can become
several gigabytes. Long texts, such as pictures in Base64, become no larger than they are.
"""

from __future__ import annotations

import json
import re
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, NoReturn

from chaski.errors import ChaskiError

__all__ = ["TooManyValuesError", "load_json", "require_few_values", "take_json"]

_MARKS = (b",", b":", b"[", b"{")
_PIECE = 1 << 20
# A text, even one without an end, or a mark outside of any.
_TEXT_OR_MARK = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,:\[{]', re.DOTALL)
# Python's fast scanner keeps the interpreter to itself until it is done: no other thread runs meanwhile.
_FAST_LENGTH = 1 << 18
# Digits of the largest float; a longer whole number takes time that grows with its square.
_MAX_DIGITS = 309


class TooManyValuesError(ChaskiError):
    """A JSON text has more values than its reader takes."""


def load_json(data: bytes | bytearray, max_values: int) -> Any:
    """The value of a JSON text with at most `max_values` values, names included.

    Raises TooManyValuesError, ValueError for invalid JSON, RecursionError for values that are nested too
    deeply. `NaN`, `Infinity` and numbers beyond the largest float are not JSON.
    """
    require_few_values(data, max_values)
    return _value(data.decode("utf-8-sig"))


def take_json(data: bytearray, max_values: int) -> Any:
    """Do the same for a buffer that is not needed any more: it is emptied as soon as its text is decoded."""
    require_few_values(data, max_values)
    text = data.decode("utf-8-sig")
    data.clear()
    return _value(text)


def _value(text: str) -> Any:
    return (_PATIENT if len(text) > _FAST_LENGTH else _FAST).decode(text)


def require_few_values(data: bytes | bytearray, max_values: int) -> None:
    """Raise TooManyValuesError for a JSON text in UTF-8 of more values, without making any of them."""
    if _may_have_more(data, max_values) and _has_more(data, max_values):
        raise TooManyValuesError(f"the JSON has more than {max_values} values")


def _may_have_more(data: bytes | bytearray, limit: int) -> bool:
    """Return whether there may be more values. Fast, as separators inside of strings are counted too."""
    count = 0
    for start in range(0, len(data), _PIECE):
        count += sum(data.count(mark, start, start + _PIECE) for mark in _MARKS)
        if count >= limit:
            return True
    return False


def _has_more(data: bytes | bytearray, limit: int) -> bool:
    """Return whether there are more values, by counting the separators outside of strings."""
    marks = texts = 0
    for match in _TEXT_OR_MARK.finditer(data):
        if match.end() - match.start() == 1 and match[0] in _MARKS:
            marks += 1
        else:
            texts += 1
        # A text without a mark next to it is a fault that the scanner reports.
        if marks >= limit or texts > limit:
            return True
    return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"the number {digits:.20}… has {len(digits)} digits; no float is as large")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if number - number != 0:
        raise ValueError(f"the number {digits:.40} is beyond the largest float")
    return number


def _decoder(is_patient: bool) -> json.JSONDecoder:
    decoder = json.JSONDecoder(parse_constant=_refuse, parse_int=_whole, parse_float=_float)
    if is_patient:
        decoder.scan_once = py_make_scanner(decoder)  # type: ignore[attr-defined]
    return decoder


_FAST = _decoder(is_patient=False)
_PATIENT = _decoder(is_patient=True)
