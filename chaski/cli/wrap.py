"""`WordWrap`: wraps text that appears bit by bit on a terminal between words."""

from __future__ import annotations

import unicodedata

__all__ = ["WordWrap", "cells"]

_MARGIN = 5
_LEAST = 10
_TAB = 8


class WordWrap:
    """Takes text as it arrives, and returns the text to print.

    A partial word is printed at once. If it grows beyond the line, it is erased and moved to the next line.
    `columns`: width of the terminal; on a very narrow one, text is not wrapped.
    """

    def __init__(self, columns: int) -> None:
        self._width = columns - _MARGIN if columns >= _LEAST + _MARGIN else 0
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """Return the text with wrapped lines."""
        return "".join(map(self._put, text)) if self._width else text

    def _put(self, char: str) -> str:
        if char == "\n":
            self._column, self._word = 0, ""
            return char
        taken = _TAB - self._column % _TAB if char == "\t" else cells(char)
        broken = ""
        if self._column + taken > self._width:
            if char in " \t":
                self._column, self._word = 0, ""
                return "\n"
            broken = self._break()
        self._column += taken
        # After a double-width character a line may always break.
        self._word = "" if char in " \t" or taken > 1 else self._word + char
        return broken + char

    def _break(self) -> str:
        """Move to the next line, together with the partial word if a line can hold it."""
        begun = sum(map(cells, self._word))
        if begun >= self._column:
            self._column, self._word = 0, ""
            return "\n"
        self._column = begun
        # Move the cursor back to the start of the word and erase it.
        return (f"\x1b[{begun}D\x1b[K" if begun else "") + "\n" + self._word


def cells(char: str) -> int:
    """Return the width of a character in terminal columns: 0, 1 or 2."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
