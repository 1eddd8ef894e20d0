"""Conversion of values to text as Go's `fmt` prints them with %v, including quotes and floats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chaski.text.template.go.values import Byte, Map, Slice, Struct, Value, to_bytes

NO_VALUE = "<no value>"
"""The text that an action writes for nil."""

_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
}
_EXPONENT = re.compile(r"e([+-]?)(\d+)$")


def show(value: Value, named: bool = False) -> str:
    """Return the value as %v prints it; with `named` as %+v, which names struct fields."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case float():
            return show_float(value)
        case complex():
            return show_complex(value)
        case Byte():
            return str(value.value)
        case Slice() | Map() | Struct():
            return _show_composite(value, named)
        case _:
            return str(value)


def show_all(values: Sequence[Value], newline: bool = False) -> str:
    """Join values as `print` does, with blanks between two that are not strings, or as `println` does."""
    return "".join(_with_blanks(values, newline)) + ("\n" if newline else "")


def show_float(number: float, format: str = "g", precision: int | None = None) -> str:
    """Return a float in format `e`, `f` or `g`; without precision, with the digits that identify it."""
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    if math.isnan(number):
        return "NaN"
    text = _shortest(number, format) if precision is None else f"{number:.{precision}{format}}"
    return _EXPONENT.sub(lambda match: f"e{match[1] or '+'}{int(match[2]):02}", text)


def show_complex(number: complex, format: str = "g", precision: int | None = None) -> str:
    """Return a complex number in parentheses."""
    imaginary = show_float(number.imag, format, precision)
    sign = "" if imaginary[0] in "+-" else "+"
    return f"({show_float(number.real, format, precision)}{sign}{imaginary}i)"


def quote(text: str, mark: str = '"', ascii_only: bool = False) -> str:
    """Return a Go literal that stands for this text."""
    return mark + text.translate(_Quoted(mark, ascii_only)) + mark


def _show_composite(value: Slice | Map | Struct, named: bool) -> str:
    text = None if isinstance(value, Struct) else value.text()
    if text is not None:
        return text
    match value:
        case Slice():
            return "[" + " ".join(show(item, named) for item in value.items) + "]"
        case Map():
            return "map[" + " ".join(f"{key}:{show(item, named)}" for key, item in value.items.items()) + "]"
        case Struct():
            fields = value.fields.items()
            return (
                "{" + " ".join((f"{key}:" if named else "") + show(item, named) for key, item in fields) + "}"
            )


def _with_blanks(values: Sequence[Value], always: bool) -> Iterator[str]:
    for index, value in enumerate(values):
        if index and (always or not (isinstance(value, str) or isinstance(values[index - 1], str))):
            yield " "
        yield show(value)


def _shortest(number: float, format: str) -> str:
    """Return the fewest digits that read back as this float; `g` uses an exponent below -4 and from 6 on."""
    mantissa, _, power = f"{number!r}".partition("e")
    sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    whole, _, fraction = digits.partition(".")
    fraction = "" if fraction == "0" else fraction
    significant = (whole + fraction).lstrip("0").rstrip("0") or "0"
    lead = len(whole) + int(power or 0) - (len(whole + fraction) - len((whole + fraction).lstrip("0")))
    exponent = lead - 1 if significant != "0" else 0
    if format == "f" or (format == "g" and -4 <= exponent < 6):
        return sign + _plain(significant, exponent + 1)
    return f"{sign}{significant[0]}{'.' if significant[1:] else ''}{significant[1:]}e{exponent:+03d}"


def _plain(digits: str, point: int) -> str:
    """Return digits with the decimal point after the first `point` of them."""
    if point <= 0:
        return "0." + "0" * -point + digits if digits != "0" else "0"
    whole = digits[:point].ljust(point, "0")
    return whole + ("." + digits[point:] if digits[point:] else "")


@dataclass(frozen=True, slots=True)
class _Quoted:
    """A lazy table for `str.translate` that quotes a character by its code."""

    mark: str
    ascii_only: bool

    def __getitem__(self, code: int) -> str:
        return _quoted(chr(code), self.mark, self.ascii_only)


def _quoted(character: str, mark: str, ascii_only: bool) -> str:
    if character == mark:
        return "\\" + character
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{to_bytes(character)[0]:02x}"
    if character.isprintable() and not (ascii_only and code > 0x7E):
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
