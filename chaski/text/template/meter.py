"""The meter of a template counts the bytes and the time that it uses, and stops it at a limit.

Templates come from untrusted files and run inside the process. Python cannot be interrupted while it makes
one huge object, so each operation that can make an object much larger than its parts checks with the meter
first, and each operation that can be repeated reports to it every time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from msgspec import Struct

from chaski.errors import TemplateError

# Text is often made in several steps (trimmed, joined, stored, then shown), and each step counts.
_STEPS = 32
# Bytes of a small object that a list, tuple or map refers to and that may have been made for it.
_SMALL_OBJECT = 56
_LONGEST_SOURCE = 128 * 1024

_Value = TypeVar("_Value")


class TemplateLimitError(TemplateError):
    """An error for a rendering that exceeded one of its limits."""


class RenderLimits(Struct, frozen=True):
    """The limits of one rendering. `characters`: of its output, and of any single intermediate value.

    All values that it makes may take `_STEPS` times as many bytes in total, kept or not.
    """

    seconds: float = 2.0
    characters: int = 4 * 1024 * 1024
    elements: int = 250_000
    number_bits: int = 4096


class Meter:
    """The account of one rendering. Its methods raise `TemplateError` if a limit is exceeded."""

    def __init__(self, limits: RenderLimits, deadline: float | None = None) -> None:
        self.limits = limits
        self._deadline = deadline_of(limits) if deadline is None else deadline
        self._made = 0

    def tick(self, size: int = 0) -> None:
        """Count new bytes, and check the time."""
        self._made += size
        _require(self._made, _STEPS * self.limits.characters, "bytes in all")
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"the chat template takes more than {self.limits.seconds:g} s")

    def expect(self, characters: int) -> None:
        """Check the limits before text of this length is made."""
        _require(characters, self.limits.characters, "characters")

    def expect_elements(self, count: int) -> None:
        """Check the limits before a list of this length is made."""
        _require(count, self.limits.elements, "elements")

    def expect_number(self, bits: int) -> None:
        """Check the limits before an integer of this many bits is made."""
        _require(bits, self.limits.number_bits, "bits in a number")

    def measured(self, value: _Value) -> _Value:
        """Count a value and everything inside, as often as it would be printed; return the value."""
        if isinstance(value, str):
            self.expect(len(value))
            self.tick(sys.getsizeof(value))
        elif isinstance(value, int):
            self.expect_number(value.bit_length())
        elif isinstance(value, list | tuple | dict):
            self.tick(sys.getsizeof(value) + _SMALL_OBJECT * len(value))
            self._walk(value)
        return value

    def _walk(self, value: object) -> None:
        characters = elements = 0
        pending = [value]
        while pending:
            item = pending.pop()
            elements += 1
            if isinstance(item, str):
                characters += len(item)
                self.expect(characters)
            elif isinstance(item, dict):
                pending += item.keys()
                pending += item.values()
            elif isinstance(item, list | tuple):
                pending += item
            self.expect_elements(elements + len(pending))


_meter: ContextVar[Meter] = ContextVar("template_meter")


def current_meter() -> Meter:
    """Return the meter of the rendering in this thread."""
    return _meter.get()


@contextmanager
def metering(limits: RenderLimits, deadline: float | None = None) -> Iterator[Meter]:
    """Run the body under a new meter."""
    token = _meter.set(Meter(limits, deadline))
    try:
        yield _meter.get()
    finally:
        _meter.reset(token)


@contextmanager
def guarded(limits: RenderLimits, deadline: float | None = None) -> Iterator[Meter]:
    """Run foreign code under a new meter; any error from it becomes a `TemplateError`.

    `deadline` is shared by several renderings (`deadline_of`); None gives this one the time of the limits.
    A template opens no files and imports nothing, so errors of the operating system pass unchanged.
    """
    try:
        with metering(limits, deadline) as meter:
            meter.tick()
            yield meter
    except (TemplateError, ImportError, OSError):
        raise
    except Exception as error:
        raise TemplateError(f"the chat template fails: {type(error).__name__}: {error}") from error


def deadline_of(limits: RenderLimits) -> float:
    """Return the deadline for renderings that begin now and share the time limit of one."""
    return time.monotonic() + limits.seconds


def check_source(source: str) -> None:
    """Refuse a long template before it is compiled, which would take over a second."""
    if len(source) > _LONGEST_SOURCE:
        raise TemplateError(f"the chat template has {len(source)} characters; the limit is {_LONGEST_SOURCE}")


def _require(amount: int, limit: int, what: str) -> None:
    if amount > limit:
        raise TemplateLimitError(f"the chat template makes {amount} {what}; the limit is {limit}")
