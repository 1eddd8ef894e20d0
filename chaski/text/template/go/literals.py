"""Go's literals: strings, characters and numbers, as the language specification writes them."""

from __future__ import annotations

import re

from chaski.errors import TemplateError
from chaski.text.template.go.values import from_bytes

_ESCAPE = re.compile(
    r"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))|([^\\])|(\\)",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv\\\"'", "\a\b\f\n\r\t\v\\\"'", strict=True))
_OCTAL = re.compile(r"([+-]?)0([0-7_]+)")
_HEX_FLOAT = re.compile(r"[+-]?0[xX][^pP]*[pP].*", re.DOTALL)
_DECIMAL_FLOAT = re.compile(r"[+-]?[0-9_]*(?:\.[0-9_]*(?:[eE][+-]?[0-9_]+)?|[eE][+-]?[0-9_]+)")


def unquote(literal: str) -> str:
    """The string that a literal in double quotes or backquotes stands for."""
    body = literal[1:-1]
    if literal.startswith("`"):
        return body.replace("\r", "")
    return from_bytes(b"".join(_characters(body, '"')))


def character(literal: str) -> int:
    """The number of the character in a literal in single quotes."""
    parts = list(_characters(literal[1:-1], "'", narrow=False))
    if len(parts) != 1:
        raise TemplateError(f"malformed character constant {literal}: it must hold one character")
    return ord(parts[0].decode("utf-32-le", "surrogatepass"))


def number(literal: str) -> int | float | complex:
    """The number that a literal stands for: an int unless it is written as a float or with an `i`."""
    try:
        value = _imaginary(literal) if literal.endswith("i") else _real(literal)
    except (ValueError, OverflowError) as error:
        raise TemplateError(f"{literal!r} is not a number that Go can read") from error
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TemplateError(f"the number {literal} overflows int")
    return value


def _characters(body: str, quote: str, narrow: bool = True) -> list[bytes]:
    """Each character or escape; as UTF-8 bytes if `narrow`, else as one UTF-32 unit."""
    return [_character(match, quote, narrow) for match in _ESCAPE.finditer(body)]


def _character(match: re.Match[str], quote: str, narrow: bool) -> bytes:
    simple, hexadecimal, octal, short, long, plain, _ = match.groups()
    wrong_quote = simple in ("'", '"') and simple != quote
    byte = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else None
    code = int(short or long, 16) if short or long else ord(_SIMPLE.get(simple, "") or plain or "\0")
    bad = match.lastgroup is None and match.group(7)
    if bad or wrong_quote or (byte or 0) > 255 or code > 0x10FFFF or ((short or long) and _is_half(code)):
        raise TemplateError(f"bad escape {match.group()!r} in a literal; Go knows \\n, \\t, \\x41, \\u0041 …")
    if byte is not None:
        return bytes([byte]) if narrow else byte.to_bytes(4, "little")
    text = chr(code)
    return text.encode("utf-8", "surrogateescape") if narrow else text.encode("utf-32-le", "surrogatepass")


def _is_half(code: int) -> bool:
    return 0xD800 <= code < 0xE000


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
    # Go looks for a sign of a float in the text, and sees an `e` behind a sign and `0x`.
    return float(value) if literal[0] in "+-" and set(literal) & set("eE") else value


def _finite(value: float) -> float:
    if value in (float("inf"), float("-inf")):
        raise OverflowError
    return value
