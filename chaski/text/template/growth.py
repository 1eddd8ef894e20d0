"""Operations of templates that can make a large value from small ones, with a look at the size first.

All raise `TemplateError` through the meter when the result would be too large.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from chaski.errors import TemplateError
from chaski.text.template.meter import current_meter

_LONG_NUMBER = re.compile(r"\d{5,}")


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right`, for the operators in the table below."""
    _OPERATORS[operator](left, right)


def joined(separator: str, values: Iterable[Any]) -> str:
    """`separator.join(values)`, each value as text."""
    texts = [str(value) for value in values]
    current_meter().expect(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def replaced(text: str, old: str, new: str, count: int = -1) -> str:
    """`text.replace(old, new, count)`."""
    current_meter().expect(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


def _padded(name: str) -> Callable[..., str]:
    def pad(text: str, width: int, *fill: str) -> str:
        current_meter().expect(width)
        padded: str = getattr(text, name)(width, *fill)
        return padded

    return pad


STRING_METHODS: dict[str, Callable[..., str]] = {
    "join": joined,
    "replace": replaced,
    **{name: _padded(name) for name in ("center", "ljust", "rjust", "zfill")},
}
"""What templates get instead of methods of `str` that can make a large text from small ones."""


def check_format(specification: str) -> None:
    """Before a value is formatted: no widths or precisions of five digits."""
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
        if "*" in left:
            raise TemplateError("the chat template formats with a width given as an argument")


_OPERATORS: dict[str, Callable[[Any, Any], None]] = {
    "+": _check_add,
    "*": _check_repeat,
    "**": _check_power,
    "%": _check_percent,
}
