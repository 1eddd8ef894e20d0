"""Go's `fmt.Sprintf`: flags, width, precision, argument indexes, and its markers for errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from chaski.text.template.go.values import Value, expect_text
from chaski.text.template.go.verbs import NAMED, Verb, formatted, with_type
from chaski.text.template.meter import current_meter

_INDEX = r"(?:\[(\d{1,9})\])?"
_AMOUNT = r"(\*|\d{1,9})?"
_DIRECTIVE = re.compile(rf"%([#0+\- ]*){_INDEX}{_AMOUNT}(\.{_INDEX}{_AMOUNT})?{_INDEX}(.)?", re.DOTALL)
_WIDEST = 1_000_000  # as in Go


def printf(format: str, arguments: Sequence[Value]) -> str:
    """Return the format with its verbs replaced."""
    return "".join(_Printf(format, arguments).pieces())


class _Printf:
    """A walk through a format that tracks the next argument."""

    def __init__(self, format: str, arguments: Sequence[Value]) -> None:
        self._format = format
        self._arguments = arguments
        self._next = 0
        self._length = len(format)
        self._reordered = False
        self._bad_index = False

    def pieces(self) -> Iterator[str]:
        position = 0
        for match in _DIRECTIVE.finditer(self._format):
            yield self._format[position : match.start()]
            yield from self._directive(match)
            position = match.end()
        yield self._format[position:]
        extra = self._arguments[self._next :]
        if extra and not self._reordered:
            expect_text(extra, self._length)
            yield "%!(EXTRA " + ", ".join(with_type(value) for value in extra) + ")"

    def _directive(self, match: re.Match[str]) -> Iterator[str]:
        flags, width_index, width_text, dot, precision_index, precision_text, index, letter = match.groups()
        current_meter().tick()
        self._bad_index = False
        self._go_to(width_index)
        width = self._amount(width_text)
        if width_text == "*" and (width is None or abs(width) > _WIDEST):
            yield "%!(BADWIDTH)"
            width = None
        if width is not None and width < 0:
            flags, width = flags + "-", -width
        self._go_to(precision_index)
        precision = self._amount(precision_text) if dot else None
        if precision_text == "*" and (precision is None or not 0 <= precision <= _WIDEST):
            yield "%!(BADPREC)"
            precision = None
        elif dot and precision is None:
            precision = 0
        self._go_to(index)
        if letter is None:
            yield "%!(NOVERB)"
        elif letter == "%":
            yield "%"
        else:
            # With %v, a plus asks for field names instead of signs.
            flags = flags.replace("+", NAMED) if letter == "v" else flags
            yield self._value(Verb(letter, flags, width, precision))

    def _value(self, verb: Verb) -> str:
        if self._bad_index:
            return f"%!{verb.letter}(BADINDEX)"
        if self._next >= len(self._arguments):
            return f"%!{verb.letter}({'BADINDEX' if self._reordered else 'MISSING'})"
        value = self._arguments[self._next]
        self._next += 1
        # A format may show one argument many times, so text that already exists counts, too.
        expect_text((value,), self._length + (verb.width or 0) + (verb.precision or 0))
        text = formatted(value, verb)
        self._length += len(text)
        return text

    def _go_to(self, index: str | None) -> None:
        if index is None:
            return
        self._reordered = True
        if 1 <= int(index) <= len(self._arguments):
            self._next = int(index) - 1
        else:
            self._bad_index = True

    def _amount(self, text: str | None) -> int | None:
        if text != "*":
            return None if text is None else int(text)
        value = self._arguments[self._next] if self._next < len(self._arguments) else None
        self._next += 1
        return value if isinstance(value, int) and not isinstance(value, bool) else None
