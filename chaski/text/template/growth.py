"""Template operations that can make a large value from small ones; each checks the size first.

All raise `TemplateError` through the meter if the result would be too large.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from chaski.errors import TemplateError
from chaski.text.template.meter import current_meter

_LONG_NUMBER = re.compile(r"\d{5,}")
# A directive of `%`: key, width, precision and letter.
_DIRECTIVE = re.compile(r"%(?:\(([^()]*)\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL)
# The most characters of a number without a width: the largest float has 309 digits before the point.
_NUMBER_CHARACTERS = 320
# A character that `%r` and `%a` cannot show becomes `\U0001f600`.
_ESCAPED_CHARACTERS = 10
# The most character comparisons of a search in one call; Python compares each place with the whole needle.
_LONGEST_SEARCH = 100_000_000


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Check the size of `left operator right` before it is computed."""
    if check := _OPERATORS.get(operator):
        check(left, right)


def check_append(items: list[Any], value: object) -> None:
    """Check that `items.append(value)` adds no list, and does not make the list too long."""
    if not isinstance(value, str | int | float | None):
        raise TemplateError("the chat template appends a value that is not a text or a number to a list")
    meter = current_meter()
    meter.expect_elements(len(items) + 1)
    meter.tick(len(value) if isinstance(value, str) else 0)


def joined(separator: str, values: Iterable[Any]) -> str:
    """Return `separator.join(values)`, with each value as text."""
    meter, texts, length = current_meter(), [], 0
    for value in values:
        texts.append(str(value))
        length += len(texts[-1]) + len(separator)
        meter.expect(length)
        meter.expect_elements(len(texts))
    return separator.join(texts)


def split_lines(text: str, keepends: bool = False) -> list[str]:
    """Return `text.splitlines(keepends)`."""
    current_meter().expect_elements(sum(map(text.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")))
    return text.splitlines(keepends)


def replaced(text: str, old: str, new: str, count: int = -1) -> str:
    """Return `text.replace(old, new, count)`."""
    times = text.count(old) if count < 0 else min(count, text.count(old))
    current_meter().expect(len(text) + times * len(new))
    return text.replace(old, new, count)


def stripped(name: str, text: str, characters: str | None = None) -> str:
    """Return `text.strip(characters)`, `lstrip` or `rstrip` by `name`; count comparisons at each end."""
    different = None if characters is None else "".join(dict.fromkeys(characters))
    if different is not None:
        _expect_search(len(text), len(different))
    found: str = getattr(text, name)(different)
    return found


def _backwards(name: str) -> Callable[..., Any]:
    def search(text: str, wanted: str, *bounds: int) -> Any:
        _expect_search(len(text), len(wanted))
        return getattr(text, name)(wanted, *bounds)

    return search


def _expect_search(length: int, wanted: int) -> None:
    """Check the cost before each place of a text is compared with all of another."""
    if length * wanted > _LONGEST_SEARCH:
        raise TemplateError(f"the chat template compares {length} characters with {wanted} others each")


def _padded(name: str) -> Callable[..., str]:
    def pad(text: str, width: int, *fill: str) -> str:
        current_meter().expect(width)
        padded: str = getattr(text, name)(width, *fill)
        return padded

    return pad


def _splitting(name: str) -> Callable[..., list[str]]:
    def split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        most = current_meter().limits.elements
        if name == "rsplit" and sep:
            _expect_search(len(text), len(sep))
        parts: list[str] = getattr(text, name)(sep, maxsplit if 0 <= maxsplit < most else most)
        current_meter().expect_elements(len(parts))
        return parts

    return split


STRING_METHODS: dict[str, Callable[..., Any]] = {
    "join": joined,
    "replace": replaced,
    "splitlines": split_lines,
    **{name: _splitting(name) for name in ("split", "rsplit")},
    **{name: partial(stripped, name) for name in ("strip", "lstrip", "rstrip")},
    **{name: _backwards(name) for name in ("rfind", "rindex", "rpartition")},
    **{name: _padded(name) for name in ("center", "ljust", "rjust", "zfill")},
}
"""Replacements of methods of `str` that can make a large value from small ones, or take long."""


def check_format(specification: str) -> None:
    """Refuse widths and precisions of five digits before a value is formatted."""
    if _LONG_NUMBER.search(specification):
        raise TemplateError(f"the chat template formats with a huge width: {specification[:40]!r}")


def _check_repeat(left: Any, right: Any) -> None:
    meter = current_meter()
    if isinstance(left, int) and isinstance(right, int):
        meter.expect_number(left.bit_length() + right.bit_length())
    for value, count in ((left, right), (right, left)):
        if isinstance(count, int) and isinstance(value, str):
            meter.expect(len(value) * count)
        elif isinstance(count, int) and isinstance(value, list | tuple):
            meter.expect_elements(len(value) * count)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        current_meter().expect_number(left.bit_length() * right)


def _check_add(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        current_meter().expect(len(left) + len(right))


def _check_percent(left: Any, right: Any) -> None:
    if isinstance(left, str):
        check_format(left)
        meter, length = current_meter(), len(left)
        for size in _formatted_sizes(left, right):
            meter.tick()
            length += size
            meter.expect(length)


def _formatted_sizes(format: str, values: Any) -> Iterable[int]:
    """Yield the largest number of characters that each directive of `format % values` makes."""
    in_order = iter(values if isinstance(values, tuple) else (values,))
    for key, width, precision, letter in _DIRECTIVE.findall(format):
        if "*" in (width, precision):
            raise TemplateError("the chat template formats with a width given as an argument")
        if letter == "(":
            raise TemplateError("the chat template uses a format key with parentheses")
        if letter == "%":
            continue
        # A missing value counts as None here; Python itself raises the error for it.
        by_name = values.get(key) if isinstance(values, Mapping) else None
        value = by_name if key else next(in_order, None)
        text = len(str(value))
        if letter in "ra":
            text *= _ESCAPED_CHARACTERS
        elif letter not in "sc":
            text += _NUMBER_CHARACTERS
        yield max(int(width or 0), text) + int(precision or 0)


_OPERATORS: dict[str, Callable[[Any, Any], None]] = {
    "+": _check_add,
    "*": _check_repeat,
    "**": _check_power,
    "%": _check_percent,
}
