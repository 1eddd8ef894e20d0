"""`WordWrap`: text that appears bit by bit in a terminal, in lines that break between words."""

from __future__ import annotations

import unicodedata

__all__ = ["WordWrap", "cells"]

_MARGIN = 5
_LEAST = 10
_TAB = 8


class WordWrap:
    """Feed it text as it comes; it gives what to print.

    A word is printed as far as it is there. Where it grows beyond the line it is taken back, and stands on
    the next one. `columns`: how wide the terminal is; in a very narrow one nothing is done.
    """

    def __init__(self, columns: int) -> None:
        self._width = columns - _MARGIN if columns >= _LEAST + _MARGIN else 0
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """The text with its lines broken."""
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
        # Behind a character as wide as two a line may always break.
        self._word = "" if char in " \t" or taken > 1 else self._word + char
        return broken + char

    def _break(self) -> str:
        """Go to the next line, with the word that has begun, if a line can hold it."""
        begun = sum(map(cells, self._word))
        if begun >= self._column:
            self._column, self._word = 0, ""
            return "\n"
        self._column = begun
        # Back to where the word began, and away with it.
        return (f"\x1b[{begun}D\x1b[K" if begun else "") + "\n" + self._word


def cells(char: str) -> int:
    """Return how many columns of a terminal a character takes: 0, 1 or 2."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
