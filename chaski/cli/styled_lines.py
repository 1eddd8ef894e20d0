"""`StyledLines`: styled words in lines that break between words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from chaski.cli.wrap import cells

__all__ = ["Span", "StyledLines", "broken", "width_of"]

Span: TypeAlias = tuple[str, str]
"""A text and its style, in the numbers of a terminal sequence: `1` is bold, `1;3` bold and italic."""

_TAB = 8
_RESET = "\x1b[0m"


def width_of(text: str) -> int:
    """Return the width of a text in terminal columns."""
    return sum(map(cells, text))


def broken(spans: Iterable[Span], width: int) -> list[list[Span]]:
    """Break spans into lines of `width` columns."""
    lines = StyledLines(width)
    for span in spans:
        lines.put(*span)
    lines.end()
    return lines.lines()


class StyledLines:
    """Takes text with `put` and returns the output with `take`. A word is output when its end is known.

    width columns of a line; 0 for no limit indent the beginning of lines that continue a broken line
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.indent: Sequence[Span] = ()
        self._out: list[Span] = []
        self._style = ""  # the style at the end of the last output
        self._column = 0
        self._blanks, self._blank_style, self._blank_width = "", "", 0
        self._word: list[Span] = []
        self._word_width = 0

    def put(self, text: str, style: str = "") -> None:
        """Add text without line ends."""
        for char in text:
            taken = cells(char)
            if char in " \t":
                self._end_word()
                self._blank_width += self._to_tab_stop() if char == "\t" else 1
                self._blanks += char
                self._blank_style = style
            elif taken > 1:  # lines may break before and after it
                self._end_word()
                self._add(char, style, taken)
                self._end_word()
            else:
                self._add(char, style, taken)

    def put_as_is(self, text: str, style: str = "") -> None:
        """Add text that is not broken here; the terminal may break it."""
        self._end_word()
        self._flush_blanks()
        self._write(text, style)
        self._column += width_of(text)

    def end_line(self) -> None:
        """End the line; blanks at its end are dropped."""
        self._end_word()
        self._break()
        self.indent = ()

    def end(self) -> None:
        """End the last word and its style, without ending the line."""
        self._end_word()
        self._write("", "")

    def take(self) -> str:
        """Return the output since the last call, with terminal sequences for the styles."""
        text = ""
        for piece, style in self._out:
            if style != self._style:
                text += (_RESET if self._style else "") + (f"\x1b[{style}m" if style else "")
                self._style = style
            text += piece
        self._out.clear()
        return text

    def lines(self) -> list[list[Span]]:
        """Return the spans since the last call, line by line."""
        lines: list[list[Span]] = [[]]
        for span in self._out:
            if span[0] == "\n":
                lines.append([])
            else:
                lines[-1].append(span)
        self._out.clear()
        return lines

    def _add(self, char: str, style: str, taken: int) -> None:
        room = self.width - sum(width_of(text) for text, _ in self.indent)
        if self.width and self._word_width + taken > max(room, 2):
            self._end_word()
        self._word.append((char, style))
        self._word_width += taken

    def _end_word(self) -> None:
        if not self._word:
            return
        end = self._column + self._blank_width + self._word_width
        if self.width and end > self.width and self._column:
            self._break()
            for text, style in self.indent:
                self._write(text, style)
                self._column += width_of(text)
        self._flush_blanks()
        for char, style in self._word:
            self._write(char, style)
        self._column += self._word_width
        self._word.clear()
        self._word_width = 0

    def _flush_blanks(self) -> None:
        if self._blanks:
            self._write(self._blanks, self._blank_style)
            self._column += self._blank_width
            self._blanks, self._blank_width = "", 0

    def _break(self) -> None:
        self._write("\n", "")
        self._column, self._blanks, self._blank_width = 0, "", 0

    def _to_tab_stop(self) -> int:
        return _TAB - (self._column + self._blank_width) % _TAB

    def _write(self, text: str, style: str) -> None:
        self._out.append((text, style))
