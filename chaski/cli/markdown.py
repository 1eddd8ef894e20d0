"""`MarkdownStream`: formats Markdown for a terminal while it arrives bit by bit.

Printed text is never changed. Therefore text is held as long as later text can change its format: the mark at
the beginning of a line, emphasis, a link, and a table, whose column widths depend on all cells. Lines of the
source stay lines on the terminal. No word is lost or moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from chaski.cli.code_colors import CodeColors
from chaski.cli.inline_markdown import BOLD, DIM, ITALIC, UNDERLINE, InlineMarkdown, joined
from chaski.cli.markdown_table import laid_out
from chaski.cli.styled_lines import Span, StyledLines

__all__ = ["MarkdownStream"]

_HELD = 4000  # maximum characters of a held line
_QUOTE = re.compile(r" {0,3}>[ \t]?")
_HEADING = re.compile(r"[ \t]{0,3}(#{1,6})[ \t]+")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+(?:\[([ xX])\][ \t]+)?")
_NUMBER = re.compile(r"([ \t]*\d{1,9}[.)])[ \t]+")
_RULE = re.compile(r"[ \t]{0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*")
# Beginnings of a line that are still undecided.
_UNDECIDED = re.compile(
    r"[ \t]*(?:>|#{1,6}|[-+*_](?:[ \t]*[-*_])*|[-+*][ \t]+\[(?:[ xX]\]?)?|\d{1,9}[.)]?|`{1,2}|~{1,2})?[ \t]*"
)
_HEADING_STYLES = {1: joined(BOLD, UNDERLINE), 2: BOLD}
_BOXES = {"": "• ", " ": "☐ ", "x": "☑ ", "X": "☑ "}
_RULE_WIDTH = 40


class MarkdownStream:
    """Takes text without control characters as it arrives, and returns the text to print.

    columns width of the lines; 0 does not break lines has_colors whether code is colored; otherwise only
    bold, italic and underlining are used
    """

    def __init__(self, columns: int, has_colors: bool) -> None:
        self._lines = StyledLines(columns)
        self._has_colors = has_colors
        self._rest = ""  # the held part of the line
        self._quotes = 0  # number of quote marks at the beginning of the line
        self._line: InlineMarkdown | CodeColors | None = None  # the formatter for the rest of the line
        self._fence = ""  # the mark that opened the code block
        self._fence_quotes = 0
        self._language = ""
        self._table: list[str] = []

    def feed(self, text: str) -> str:
        """Add text; return the text that can be printed now."""
        *whole, rest = text.split("\n")
        for piece in whole:
            self._rest += piece
            self._go_on(True)
            self._end_line()
        self._rest += rest
        if rest:
            self._go_on(False)
        return self._lines.take()

    def close(self) -> str:
        """End the text; return the text that was held."""
        has_begun = bool(self._rest)
        if has_begun or self._line is not None:
            self._go_on(True)
        is_row = has_begun and bool(self._table)
        self._end_table()
        self._lines.end()
        text = self._lines.take()
        return text.removesuffix("\n") if is_row else text

    def _go_on(self, is_whole: bool) -> None:
        if self._line is None and not self._begin(is_whole):
            return
        text, self._rest = self._rest, ""
        if isinstance(self._line, CodeColors):
            for span in self._line.feed(text, is_whole):
                self._lines.put_as_is(*span)
        elif self._line is not None:
            for span in self._line.feed(text, is_whole):
                self._lines.put(*span)

    def _end_line(self) -> None:
        if self._line is not None or not self._table:
            self._lines.end_line()
        self._line, self._quotes, self._rest = None, 0, ""

    def _begin(self, is_whole: bool) -> bool:
        """Determine the kind of line, print its mark and set its formatter. Return False if undecided."""
        most = self._fence_quotes if self._fence else self._quotes + len(self._rest)
        while self._quotes < most and (quote := _QUOTE.match(self._rest)):
            if quote.end() == len(self._rest) and not is_whole:
                return False
            self._end_table()
            self._quotes += 1
            self._rest = self._rest[quote.end() :]
        return self._begin_code(is_whole) if self._fence else self._begin_text(is_whole)

    def _begin_code(self, is_whole: bool) -> bool:
        mark = self._rest.strip()
        if not is_whole and len(mark) < _HELD and not mark.strip(self._fence[0]):
            return False
        self._put_quotes()
        if len(mark) >= len(self._fence) and not mark.strip(self._fence[0]):
            self._fence = ""
            self._put_all(DIM)
        else:
            self._line = CodeColors(self._language, self._has_colors)
        return True

    def _begin_text(self, is_whole: bool) -> bool:
        rest = self._rest
        waits = not is_whole and len(rest) < _HELD
        stripped = rest.lstrip()
        is_row = stripped.startswith("|") and not self._quotes and len(rest) < _HELD
        if waits and (is_row or stripped.startswith(("```", "~~~")) or _UNDECIDED.fullmatch(rest)):
            return False
        if is_row:
            self._table.append(rest)
            self._rest = ""
            return True
        self._end_table()
        self._put_quotes()
        if fence := _FENCE.fullmatch(rest):
            self._fence, self._language, self._fence_quotes = fence[1], fence[2], self._quotes
            self._put_all(DIM)
        elif _RULE.fullmatch(rest):
            width = self._lines.width or _RULE_WIDTH
            self._rest = "─" * min(width - 2 * self._quotes, _RULE_WIDTH)
            self._put_all(DIM)
        else:
            self._line = InlineMarkdown(self._put_mark(), self._has_colors)
        return True

    def _put_mark(self) -> str:
        """Print the mark at the beginning of the line; return the style of its text."""
        rest, style = self._rest, ITALIC if self._quotes else ""
        if heading := _HEADING.match(rest):
            self._rest = rest[heading.end() :]
            return joined(style, _HEADING_STYLES.get(len(heading[1]), joined(BOLD, ITALIC)))
        if bullet := _BULLET.match(rest):
            mark = bullet[1] + _BOXES[bullet[2] or ""]
            self._rest = rest[bullet.end() :]
        elif number := _NUMBER.match(rest):
            mark = number[1] + " "
            self._rest = rest[number.end() :]
        else:
            mark = rest[: len(rest) - len(rest.lstrip())]
            self._rest = rest.lstrip()
        self._lines.put_as_is(mark)
        self._lines.indent = [*self._bars(), (" " * len(mark), "")]
        return style

    def _put_quotes(self) -> None:
        for bar in self._bars():
            self._lines.put_as_is(*bar)
        self._lines.indent = list(self._bars())

    def _bars(self) -> Iterator[Span]:
        return (("│ ", DIM) for _ in range(self._quotes))

    def _put_all(self, style: str) -> None:
        """Print the whole line unchanged."""
        self._lines.put_as_is(self._rest, style)
        self._rest = ""
        self._line = InlineMarkdown("", False)

    def _end_table(self) -> None:
        """Print the held rows of a table."""
        rows, self._table = self._table, []
        if not rows:
            return
        for line in laid_out(rows, self._lines.width, self._has_colors):
            for span in line:
                self._lines.put_as_is(*span)
            self._lines.end_line()
