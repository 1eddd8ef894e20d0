"""Formatting of one value by one verb of Go's `fmt`: `%5.2f`, `%-8s`, `%q` and the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from chaski.errors import TemplateError
from chaski.text.template.go.show import quote, show, show_float
from chaski.text.template.go.values import Byte, Map, Slice, Struct, Value, to_bytes, type_name

_BASES = {"b": "b", "d": "d", "o": "o", "O": "o", "x": "x", "X": "X"}
_PREFIXES = {"b": "0b", "o": "0", "x": "0x", "X": "0X"}
NAMED = "N"  # a flag that only chaski uses


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb letter with its flags, and width and precision in characters: `%-8.3f`."""

    letter: str
    flags: str = ""
    width: int | None = None
    precision: int | None = None

    def has(self, flag: str) -> bool:
        return flag in self.flags


def formatted(value: Value, verb: Verb, inside: bool = False) -> str:
    """Return the value formatted by the verb; nil `inside` another value is not padded."""
    match verb.letter, value:
        case "T", _:
            return _padded(type_name(value), verb)
        case _, None if inside:
            return "<nil>"
        case "v", None:
            return _padded("<nil>", verb)
        case _, None:
            return f"%!{verb.letter}(<nil>)"
        case "v", _ if verb.has("#"):
            return _syntax(value)
        case _, Slice() | Map() | Struct():
            return _composite(value, verb)
        case _:
            text = _SCALARS[type(value)](value, verb)
            return _bad(value, verb) if text is None else text


def _composite(value: Slice | Map | Struct, verb: Verb) -> str:
    """Format each part by the verb; a type with its own text is formatted as that text."""
    text = None if isinstance(value, Struct) else value.text()
    if text is not None and verb.letter in "vsxXq":
        return _of_text(text, verb) or ""
    named = verb.has(NAMED)
    match value:
        case Slice():
            return "[" + " ".join(formatted(item, verb, True) for item in value.items) + "]"
        case Map():
            pairs = (
                f"{formatted(key, verb)}:{formatted(item, verb, True)}" for key, item in value.items.items()
            )
            return "map[" + " ".join(pairs) + "]"
        case Struct():
            parts = (
                (f"{key}:" if named else "") + formatted(item, verb, True)
                for key, item in value.fields.items()
            )
            return "{" + " ".join(parts) + "}"


def _of_bool(value: Value, verb: Verb) -> str | None:
    return _padded(show(value), verb) if verb.letter in "tv" else None


def _of_integer(value: Value, verb: Verb) -> str | None:
    number = value.value if isinstance(value, Byte) else value
    assert isinstance(number, int)
    match verb.letter:
        case "v":
            return _digits(number, replace(verb, letter="d"))
        case "c":
            return _padded(_character(number), verb)
        case "q":
            return _padded(quote(_character(number), "'", verb.has("+")), verb)
        case "U":
            shown = f" '{_character(number)}'" if verb.has("#") and _character(number).isprintable() else ""
            return _padded(f"U+{number:0{max(verb.precision or 0, 4)}X}{shown}", replace(verb, flags=""))
        case letter if letter in _BASES:
            return _digits(number, verb)
        case _:
            return None


def _digits(number: int, verb: Verb) -> str:
    """Return an integer in the verb's base, zero-padded to the precision, or to the width with flag 0."""
    sign = "-" if number < 0 else "+" if verb.has("+") else " " if verb.has(" ") else ""
    digits = format(abs(number), _BASES[verb.letter])
    if verb.precision == 0 and number == 0:
        return " " * (verb.width or 0)
    zeros = verb.precision or 0
    if verb.precision is None and verb.has("0") and not verb.has("-") and verb.width is not None:
        zeros = verb.width - len(sign)
    digits = digits.rjust(zeros, "0")
    prefix = "0o" if verb.letter == "O" else _PREFIXES.get(verb.letter, "") if verb.has("#") else ""
    if prefix == "0" and digits.startswith("0"):
        prefix = ""
    return _padded(sign + prefix + digits, replace(verb, flags=verb.flags.replace("0", "")))


def _of_float(value: Value, verb: Verb) -> str | None:
    assert isinstance(value, float)
    if verb.letter in "bxX":
        raise TemplateError(f"printf cannot write a float with %{verb.letter} here; use %g, %f or %e")
    if verb.letter not in "vgGeEfF":
        return None
    text = _signed(show_float(value, *_float_format(verb)), verb)
    if verb.letter in "GE":
        text = text.upper() if text.lstrip("+-")[0].isdigit() else text
    if not verb.has("0") or verb.has("-") or not text.lstrip("+- ")[0].isdigit():
        return _padded(text, replace(verb, flags=verb.flags.replace("0", "")))
    sign = text[0] if text[0] in "+- " else ""
    return sign + text[len(sign) :].rjust((verb.width or 0) - len(sign), "0")


def _of_complex(value: Value, verb: Verb) -> str | None:
    assert isinstance(value, complex)
    if verb.letter not in "vgGeEfF":
        return None
    parts = replace(verb, flags=verb.flags.replace("+", "") + "+")
    imaginary = _of_float(value.imag, parts)
    return f"({_of_float(value.real, verb)}{imaginary}i)"


def _float_format(verb: Verb) -> tuple[str, int | None]:
    format = "g" if verb.letter == "v" else verb.letter.lower()
    return format, 6 if verb.precision is None and format != "g" else verb.precision


def _signed(text: str, verb: Verb) -> str:
    bare = text.removeprefix("+")
    if bare.startswith("-"):
        return bare
    return "+" + bare if verb.has("+") or bare == "Inf" else " " + bare if verb.has(" ") else bare


def _of_text(value: Value, verb: Verb) -> str | None:
    assert isinstance(value, str)
    match verb.letter:
        case "v" | "s":
            return _padded(value[: verb.precision], verb)
        case "q":
            return _padded(_quoted(value[: verb.precision], verb), verb)
        case "x" | "X":
            return _padded(_hexadecimal(to_bytes(value)[: verb.precision], verb), verb)
        case _:
            return None


def _quoted(text: str, verb: Verb) -> str:
    plain = all(character.isprintable() or character == "\t" for character in text) and "`" not in text
    return f"`{text}`" if verb.has("#") and plain else quote(text, '"', verb.has("+"))


def _hexadecimal(data: bytes, verb: Verb) -> str:
    prefix = "0x" if verb.has("#") and data else ""
    text = data.hex(" ").replace(" ", " " + prefix) if verb.has(" ") else data.hex()
    return (prefix + text).upper() if verb.letter == "X" else prefix + text


def _character(number: int) -> str:
    valid = 0 <= number <= 0x10FFFF and not 0xD800 <= number < 0xE000
    return chr(number) if valid else "\ufffd"


def _padded(text: str, verb: Verb) -> str:
    width = verb.width or 0
    if verb.has("-"):
        return text.ljust(width)
    return text.rjust(width, "0" if verb.has("0") else " ")


def _bad(value: Value, verb: Verb) -> str:
    """Return the text for a value that the verb cannot show."""
    shown = formatted(value, replace(verb, letter="v", flags=verb.flags.replace("#", "")))
    return f"%!{verb.letter}({type_name(value)}={shown})"


def with_type(value: Value) -> str:
    return "<nil>" if value is None else f"{type_name(value)}={show(value)}"


def _syntax(value: Value) -> str:
    """Return the value in Go syntax: %#v."""
    match value:
        case None:
            return "interface {}(nil)"
        case str():
            return quote(value)
        case Byte():
            return hex(value.value)
        case Slice() | Map() if value.is_nil:
            return f"{value.type_name}(nil)"
        case Slice():
            return f"{value.type_name}{{{', '.join(_syntax(item) for item in value.items)}}}"
        case Map():
            pairs = (f"{quote(key)}:{_syntax(item)}" for key, item in value.items.items())
            return f"{value.type_name}{{{', '.join(pairs)}}}"
        case Struct():
            pairs = (f"{key}:{_syntax(item)}" for key, item in value.fields.items())
            return f"{value.type_name}{{{', '.join(pairs)}}}"
        case _:
            return show(value)


_SCALARS: dict[type, Callable[[Value, Verb], str | None]] = {
    bool: _of_bool,
    int: _of_integer,
    Byte: _of_integer,
    float: _of_float,
    complex: _of_complex,
    str: _of_text,
}
