"""functionary 3.2's format: messages that begin with their recipient, `>>>all` or the name of a tool.

`>>>all\\nI look.>>>get_weather\\n{"city": "Rome"}`. The prompt ends with the first `>>>`.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaski.text.parsers.json_text import JsonScanner
from chaski.text.parsers.pieces import Content, FoundCall, Lead, Piece
from chaski.text.parsers.readers import read_arguments
from chaski.text.parsers.schema import Tools, names_of
from chaski.text.parsers.stream import begun_mark

_MARK = ">>>"
_EVERYBODY = "all"


class RecipientParser:
    """Splits an answer at the recipients that it knows."""

    def __init__(self, tools: Tools = (), prompt: str = "") -> None:
        self._tools = tools
        self._marks = tuple(f"{_MARK}{name}\n" for name in sorted({*names_of(tools), _EVERYBODY}))
        self._buffer = _MARK if prompt.rstrip().endswith(_MARK) else ""
        self._is_begun = bool(self._buffer)
        self._tool = ""
        self._header = ""
        self._scanner = JsonScanner()
        self._scanned = 0

    @property
    def lead(self) -> Lead | None:
        """Return None: no thought precedes the content."""
        return None

    def feed(self, text: str) -> list[Piece]:
        """Read text and return the pieces that are certain now."""
        self._buffer += text
        return list(self._pieces(final=False))

    def flush(self) -> list[Piece]:
        """Return the rest after the last text."""
        return list(self._pieces(final=True))

    def _pieces(self, final: bool) -> Iterator[Piece]:
        while True:
            if self._tool:
                end = self._scanner.feed(self._buffer, self._scanned, len(self._buffer))
                self._scanned = len(self._buffer)
                if end is None and not final:
                    return
                yield self._call(len(self._buffer) if end is None else end)
                continue
            found = [(self._buffer.find(mark), mark) for mark in self._marks if mark in self._buffer]
            if not found:
                yield from self._streamed(final)
                return
            position, mark = min(found)
            yield from self._content(position)
            self._buffer, self._is_begun = self._buffer[len(mark) :], False
            recipient = mark[len(_MARK) : -1]
            if recipient != _EVERYBODY:
                self._tool, self._header = recipient, mark
                self._scanner, self._scanned = JsonScanner(), 0

    def _streamed(self, final: bool) -> Iterator[Piece]:
        kept = 0 if final else begun_mark(self._buffer, self._marks)
        yield from self._content(len(self._buffer) - kept)

    def _content(self, end: int) -> Iterator[Piece]:
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        if text and self._is_begun:
            text, self._is_begun = text.removeprefix(_MARK), False
        if text:
            yield Content(text)

    def _call(self, end: int) -> Piece:
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        name, self._tool, self._is_begun = self._tool, "", False
        arguments = read_arguments(text, name, self._tools)
        return Content(self._header + text) if arguments is None else FoundCall(name, arguments)
