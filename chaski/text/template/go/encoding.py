"""Escapes of text for JSON, HTML, JavaScript and URLs, as Go's packages write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote_plus

from chaski.errors import TemplateError
from chaski.text.template.go.show import show_float
from chaski.text.template.go.values import Byte, Map, Slice, Struct, Value, is_true, to_bytes, type_name

_HTML = str.maketrans({'"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;", "\0": "\ufffd"})
_JS = {"\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D"}
# For JSON in HTML: these characters could end a script or start a tag.
_JSON = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)
_NOT_TEXT = re.compile("[\udc80-\udcff]")
_SHORT_EXPONENT = re.compile(r"e-0(\d)$")


def to_json(value: Value) -> str:
    """Return a value as JSON without blanks; map keys in order, struct fields as declared."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _json_number(value)
        case str():
            return json_text(value)
        case Byte():
            return str(value.value)
        case Slice():
            return _json_list(value)
        case Map():
            return "null" if value.is_nil else _json_object(value.items.items())
        case Struct():
            return _json_object(_json_fields(value))
        case _:
            raise TemplateError(f"a value of the type {type_name(value)} cannot be written as JSON")


def json_text(text: str) -> str:
    """Return a string in JSON; bytes that are not UTF-8 become U+FFFD."""
    return json.dumps(_NOT_TEXT.sub("\ufffd", text), ensure_ascii=False).translate(_JSON)


def html(text: str) -> str:
    """Escape text for use between tags or in an attribute."""
    return text.translate(_HTML)


def javascript(text: str) -> str:
    """Escape text for use in a JavaScript string."""
    return text.translate(_JAVASCRIPT)


def url_query(text: str) -> str:
    """Escape text for use in a URL query."""
    return to_bytes(text).decode("latin-1").translate(_QUERY)


def _json_list(value: Slice) -> str:
    shown = value.for_json()
    if not isinstance(shown, Slice):
        return to_json(shown)
    return "null" if shown.is_nil else "[" + ",".join(map(to_json, shown.items)) + "]"


def _json_object(items: Iterable[tuple[str, Value]]) -> str:
    return "{" + ",".join(f"{json_text(key)}:{to_json(item)}" for key, item in items) + "}"


def _json_fields(value: Struct) -> Iterable[tuple[str, Value]]:
    for name, item in value.fields.items():
        if name not in value.json_optional or is_true(item) or isinstance(item, Struct):
            yield value.json_names.get(name, name), item


def _json_number(number: float) -> str:
    if number - number != 0:
        raise TemplateError("JSON cannot contain infinite numbers")
    format = "f" if number == 0 or 1e-6 <= abs(number) < 1e21 else "e"
    return _SHORT_EXPONENT.sub(r"e-\1", show_float(number, format))


class _JavaScript:
    """A lazy table for `str.translate` that escapes a character by its code."""

    def __getitem__(self, code: int) -> str:
        character = chr(code)
        if character in _JS:
            return _JS[character]
        plain = 0x20 <= code < 0x80 or character.isprintable() or 0xDC80 <= code <= 0xDCFF
        return character if plain else f"\\u{code:04X}"


_JAVASCRIPT = _JavaScript()
_QUERY = {code: quote_plus(bytes((code,)), safe="") for code in range(256)}
