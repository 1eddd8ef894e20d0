"""Which parameters of a test `make test` runs. The others are long: they run each night."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["long_after", "long_unless"]


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of which all after the first `count` are long. A tuple is several arguments."""
    return [value if index < count else _long(value) for index, value in enumerate(values)]


def long_unless(short: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return parameters of which all are long that are not in `short`."""
    return [value if value in short else _long(value) for value in values]


def _long(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
