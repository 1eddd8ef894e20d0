"""Go's literals: strings, characters and numbers, as the language specification writes them."""

from __future__ import annotations

import re

from chaski.errors import TemplateError
from chaski.text.template.go.values import from_bytes

_CHARACTER = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\\"'])|x(?P<hexadecimal>[0-9a-fA-F]{2})|(?P<octal>[0-7]{3})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))|(?P<plain>[^\\])|\\",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv\\\"'", "\a\b\f\n\r\t\v\\\"'", strict=True))
_BYTES = {"hexadecimal": 16, "octal": 8}
_OCTAL = re.compile(r"([+-]?)0([0-7_]+)")
_HEX_FLOAT = re.compile(r"[+-]?0[xX][^pP]*[pP].*", re.DOTALL)
_DECIMAL_FLOAT = re.compile(r"[+-]?[0-9_]*(?:\.[0-9_]*(?:[eE][+-]?[0-9_]+)?|[eE][+-]?[0-9_]+)")


def unquote(literal: str) -> str:
    """Return the string that a literal in double quotes or backquotes stands for."""
    body = literal[1:-1]
    if literal.startswith("`"):
        return body.replace("\r", "")
    return from_bytes(b"".join(_encoded(match, '"') for match in _CHARACTER.finditer(body)))


def character(literal: str) -> int:
    """Return the code point of a literal in single quotes."""
    matches = list(_CHARACTER.finditer(literal[1:-1]))
    if len(matches) != 1:
        raise TemplateError(f"malformed character constant {literal}: it must contain one character")
    return _code(matches[0], "'")


def number(literal: str) -> int | float | complex:
    """Return the number that a literal stands for: an int unless it is written as a float or with an `i`."""
    try:
        value = _imaginary(literal) if literal.endswith("i") else _real(literal)
    except (ValueError, OverflowError) as error:
        raise TemplateError(f"{literal!r} is not a number that Go can read") from error
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TemplateError(f"the number {literal} overflows int")
    return value


def _encoded(match: re.Match[str], quote: str) -> bytes:
    """Return the bytes of a character in a string; some escapes are a single byte."""
    code = _code(match, quote)
    return bytes([code]) if match.lastgroup in _BYTES else chr(code).encode()


def _code(match: re.Match[str], quote: str) -> int:
    """Return the code of a character or an escape."""
    text = match[match.lastgroup or 0]
    match match.lastgroup:
        case "plain":
            return ord(text)
        case "simple" if text not in "'\"" or text == quote:
            return ord(_SIMPLE[text])
        case "hexadecimal" | "octal" as group if int(text, _BYTES[group]) < 256:
            return int(text, _BYTES[group])
        case "short" | "long" if _is_character(int(text, 16)):
            return int(text, 16)
        case _:
            raise TemplateError(f"bad escape {match[0]!r} in a literal; Go knows \\n, \\t, \\x41, \\u0041 …")


def _is_character(code: int) -> bool:
    return code <= 0x10FFFF and not 0xD800 <= code < 0xE000


def _imaginary(literal: str) -> complex:
    return complex(literal.replace("_", "?")[:-1] + "j")


def _real(literal: str) -> int | float:
    if (octal := _OCTAL.fullmatch(literal)) is not None:
        return int(octal[1] + "0o" + octal[2], 0)
    if _HEX_FLOAT.fullmatch(literal):
        return float.fromhex(literal)
    if _DECIMAL_FLOAT.fullmatch(literal):
        return _finite(float(literal))
    value = int(literal, 0)
    # Like Go, take an `e` after a sign and `0x` for an exponent, which makes a float.
    return float(value) if literal[0] in "+-" and set(literal) & set("eE") else value


def _finite(value: float) -> float:
    if value in (float("inf"), float("-inf")):
        raise OverflowError
    return value
