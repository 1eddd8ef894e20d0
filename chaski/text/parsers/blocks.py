"""Blocks of calls: their tags, and the search for their end in a stream."""

from __future__ import annotations

from msgspec import Struct

from chaski.text.parsers.json_text import JsonScanner
from chaski.text.parsers.readers import CallReader


class CallBlock(Struct, frozen=True):
    """A block of calls: from `opening` to `closing`, or without `closing` to the end of a JSON value.

    With `is_bare` the opening is the first character of the call itself, and counts only at the start of the
    answer. A closing tag does not count inside of a JSON string in `quoted` blocks, nor between the tags of
    `values`. `keeps_opening` gives the opening to the reader as well. JSON may have a name before it, up to
    the mark `before_json`. Behind the closing tag there may be `orphan`, whose own opening is missing.
    """

    opening: str
    closing: str | None
    read: CallReader
    quoted: bool = True
    is_bare: bool = False
    keeps_opening: bool = False
    before_json: str | None = None
    values: tuple[str, str] | None = None
    orphan: str = ""


class CallBlockEnd:
    """Finds the end of one block, in a text that grows behind its opening."""

    def __init__(self, block: CallBlock) -> None:
        self._block = block
        self._scanner = JsonScanner()
        self._scanned = 0
        self._tracked = 0
        self._open_values = 0

    def find(self, text: str, final: bool) -> tuple[int, int] | None:
        """Return where the body ends and where the rest begins; None if the body goes on behind this text."""
        closing = self._block.closing
        if closing is None:
            return self._end_of_json(text)
        found = text.find(closing, max(self._scanned - len(closing), 0))
        while found >= 0 and (self._is_in_value(text, found) or self._is_in_string(text, found)):
            found = text.find(closing, found + 1)
        self._scanned = len(text)
        if found < 0 and final and self._block.values:
            # A value without an end cannot hold a tag.
            found = text.find(closing)
        return None if found < 0 else (found, found + len(closing))

    def _end_of_json(self, text: str) -> tuple[int, int] | None:
        start = self._start_of_json(text)
        if start is None:
            return None
        end = self._scanner.feed(text, max(self._scanned, start), len(text))
        self._scanned = len(text)
        return None if end is None else (end, end)

    def _start_of_json(self, text: str) -> int | None:
        mark = self._block.before_json
        if mark is None or text.lstrip().startswith(("[", "{")):
            return 0
        found = text.find(mark)
        return None if found < 0 else found + len(mark)

    def _is_in_string(self, text: str, position: int) -> bool:
        if not self._block.quoted:
            return False
        self._scanner.track(text, self._tracked, position)
        self._tracked = position
        return self._scanner.in_string

    def _is_in_value(self, text: str, position: int) -> bool:
        if self._block.values is None:
            return False
        opening, closing = self._block.values
        self._open_values += text.count(opening, self._tracked, position)
        if closing != opening:
            self._open_values -= text.count(closing, self._tracked, position)
        self._tracked = position
        return self._open_values % 2 == 1 if closing == opening else self._open_values > 0
