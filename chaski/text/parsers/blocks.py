"""Blocks of calls: their tags, and the search for their end in a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from chaski.text.parsers.json_text import JsonScanner
from chaski.text.parsers.pieces import FoundCall
from chaski.text.parsers.readers import CallReader, read_arguments, read_known_list
from chaski.text.parsers.schema import Tools, names_of

# The most ends of a block to try if its text breaks off in a string.
_MAX_ENDS = 32


class Found(Struct, frozen=True):
    """The end of a block in its text, and its calls; None if the block is text."""

    end: int
    calls: Sequence[FoundCall] | None


class BlockReader(Protocol):
    """Reads one block from a text that begins with its opening and grows."""

    def find(self, text: str, final: bool) -> Found | None:
        """Return the end of the block and its calls; None if they are not certain yet."""


class Strings(Protocol):
    """Follows a text and knows whether its end is inside a string."""

    @property
    def in_string(self) -> bool: ...

    def track(self, text: str, start: int, end: int) -> None:
        """Read `text[start:end]`."""


class CallBlock(Struct, frozen=True):
    """A block of calls: from `opening` to `closing`, or without `closing` to the end of a JSON value.

    If `is_bare`, the opening is the first character of the call itself and counts only at the start of the
    answer. A closing tag inside the `strings` of the block does not count. A name may precede the JSON, up to
    the mark `before_json`. After the closing tag there may be `orphan`, a closing tag without an opening.
    """

    opening: str
    closing: str | None
    read: CallReader
    strings: Callable[[], Strings] = JsonScanner
    is_bare: bool = False
    before_json: str | None = None
    orphan: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """Return all tags, for tests of noise."""
        return (self.opening,) if self.closing is None else (self.opening, self.closing)

    def begin(self, tools: Tools) -> BlockReader:
        """Return a reader of one block."""
        return _JsonEnd(self, tools) if self.closing is None else _Delimited(self, tools, self.closing)


class BareList(Struct, frozen=True):
    """A list of calls of known tools without tags, in JSON or Python: `[f(a=1), g()]`.

    It counts only at the start of the answer.
    """

    opening: str = "["
    is_bare: bool = True
    orphan: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """Return all tags, for tests of noise."""
        return (self.opening,)

    def begin(self, tools: Tools) -> BlockReader:
        """Return a reader of one list."""
        starts = ("{", "[", *(f"{name}(" for name in names_of(tools)))
        return _KnownEnd(self.opening, starts, 0, read_known_list, tools)


class NamedCall(Struct, frozen=True):
    """A call without tags: the name of a tool on a line, then its arguments as JSON.

    It counts only at the start of the answer. `opening` is the line.
    """

    opening: str
    is_bare: bool = True
    orphan: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """Return all tags, for tests of noise."""
        return (self.opening,)

    def begin(self, tools: Tools) -> BlockReader:
        """Return a reader of one call."""
        return _KnownEnd(self.opening, ("{",), len(self.opening), self._read, tools)

    def _read(self, text: str, tools: Tools) -> list[FoundCall] | None:
        name = self.opening.strip()
        arguments = read_arguments(text, name, tools)
        return None if arguments is None else [FoundCall(name, arguments)]


class QuotedBy:
    """Follows strings between two equal marks."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._count = 0

    @property
    def in_string(self) -> bool:
        """Return whether a string is open."""
        return self._count % 2 == 1

    def track(self, text: str, start: int, end: int) -> None:
        """Read `text[start:end]`."""
        self._count += text.count(self._mark, start, end)


class _Delimited:
    """A block up to its closing tag."""

    def __init__(self, block: CallBlock, tools: Tools, closing: str) -> None:
        self._block = block
        self._tools = tools
        self._closing = closing
        self._begin = len(block.opening)
        self._strings = block.strings()
        self._searched = self._tracked = self._begin
        self._is_unclear = False

    def find(self, text: str, final: bool) -> Found | None:
        """Return the end of the block and its calls; None if they are not certain yet."""
        while not self._is_unclear and self._has_begun(text):
            end = text.find(self._closing, self._searched)
            if end < 0:
                self._searched = max(self._searched, len(text) - len(self._closing) + 1)
                break
            self._strings.track(text, self._tracked, end)
            self._tracked = end
            self._searched = end + 1
            if not self._strings.in_string:
                found = self._read(text, end)
                if found.calls is not None or self._block.strings is JsonScanner:
                    return found
                # Quotes in strings of other languages may mislead the JSON scanner.
                self._is_unclear = True
        return self._last(text) if final else None

    def _has_begun(self, text: str) -> bool:
        """Return whether the mark before JSON has come; quotes before it are not those of JSON."""
        mark = self._block.before_json
        if mark is None or self._tracked > self._begin:
            return True
        start, end = text.find(mark, self._begin), text.find(self._closing, self._begin)
        if start >= 0 and (end < 0 or start < end):
            self._tracked = self._searched = start + len(mark)
        return start >= 0 or end >= 0

    def _last(self, text: str) -> Found:
        """Return the first end with a call before it; if there is none, the text up to the first end."""
        end = first = text.find(self._closing, self._begin)
        for _ in range(_MAX_ENDS):
            if end < 0:
                break
            found = self._read(text, end)
            if found.calls is not None:
                return found
            end = text.find(self._closing, end + 1)
        if first >= 0:
            return Found(first + len(self._closing), None)
        return Found(len(text), self._calls(text[self._begin :]))

    def _read(self, text: str, end: int) -> Found:
        return Found(end + len(self._closing), self._calls(text[self._begin : end]))

    def _calls(self, text: str) -> Sequence[FoundCall] | None:
        """Return the calls of a text; closing tags between them may be missing."""
        calls = self._block.read(text, self._tools)
        if calls is not None or self._block.opening not in text:
            return calls
        parts = [self._block.read(part, self._tools) for part in text.split(self._block.opening)]
        return [call for part in parts for call in part or ()] if None not in parts else None


class _JsonEnd:
    """A block up to the end of a JSON value."""

    def __init__(self, block: CallBlock, tools: Tools) -> None:
        self._block = block
        self._tools = tools
        self._begin = len(block.opening) - block.opening.endswith(("[", "{"))
        self._scanner = JsonScanner()
        self._scanned = self._begin

    def find(self, text: str, final: bool) -> Found | None:
        """Return the end of the block and its calls; None if they are not certain yet."""
        start = self._start(text)
        end = None
        if start is not None:
            end = self._scanner.feed(text, max(self._scanned, start), len(text))
            self._scanned = len(text)
        if end is None:
            if not final:
                return None
            end = len(text)
        return Found(end, self._block.read(text[self._begin : end], self._tools))

    def _start(self, text: str) -> int | None:
        mark = self._block.before_json
        if mark is None or text[self._begin :].lstrip().startswith(("[", "{")):
            return self._begin
        found = text.find(mark, self._begin)
        return None if found < 0 else found + len(mark)


class _KnownEnd:
    """A call without tags, or a list of them, up to its closing bracket.

    starts: the texts after `opening` with which a call begins; other text is shown as it comes
    begin: where the brackets begin
    """

    def __init__(self, opening: str, starts: tuple[str, ...], begin: int, read: CallReader, tools: Tools):
        self._opening = opening
        self._starts = starts
        self._read = read
        self._tools = tools
        self._scanner = JsonScanner(single=True)
        self._begin = self._scanned = begin
        self._is_begun = False

    def find(self, text: str, final: bool) -> Found | None:
        """Return the end of the calls, and the calls; None if they are not certain yet."""
        if not self._is_begun:
            inner = text[len(self._opening) :].lstrip()
            self._is_begun = inner.startswith(self._starts)
            if not self._is_begun:
                may_begin = any(start.startswith(inner) for start in self._starts)
                return None if may_begin and not final else Found(len(text) - len(inner), None)
        end = self._scanner.feed(text, self._scanned, len(text))
        self._scanned = len(text)
        if end is None and not final:
            return None
        end = len(text) if end is None else end
        return Found(end, self._read(text[self._begin : end], self._tools))
