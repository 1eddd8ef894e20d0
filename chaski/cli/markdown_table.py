"""Markdown tables, in columns as wide as their cells, or narrower on a narrow terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from chaski.cli.inline_markdown import BOLD, DIM, InlineMarkdown
from chaski.cli.styled_lines import Span, broken, width_of

__all__ = ["laid_out"]

_DELIMITERS = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)*(?:\s*:?-+:?\s*)?\|?\s*")
# A bar in code, or after a backslash, is text.
_PIECE = re.compile(r"\\.|`[^`]*`|.")
_LEAST = 6
_BETWEEN = " │ "

Line = list[Span]


def laid_out(rows: Sequence[str], width: int, has_colors: bool) -> Iterator[Line]:
    """Yield the lines of the table.

    Rows without a delimiter line below the first are not a table and stay unchanged.

    width: maximum width of a line; 0 for no limit.
    """
    if len(rows) < 2 or not _is_delimiter(rows[1]):
        for row in rows:
            yield list(InlineMarkdown("", has_colors).feed(row, True))
        return
    sides = [_side(cell) for cell in _cells(rows[1])]
    head, *body = [_cells(row) for row in (rows[0], *rows[2:])]
    columns = max(len(sides), len(head), *map(len, body), 1)
    texts = [
        [list(InlineMarkdown(style, has_colors).feed(cell, True)) for cell in cells]
        for cells, style in [(head, BOLD), *((cells, "") for cells in body)]
    ]
    widths = _widths(texts, columns, width)
    for place, cells in enumerate(texts):
        yield from _row(cells, widths, sides)
        if place == 0:
            yield [("─┼─".join("─" * each for each in widths), DIM)]


def _is_delimiter(row: str) -> bool:
    return "-" in row and _DELIMITERS.fullmatch(row) is not None


def _cells(row: str) -> list[str]:
    """Split a row at its bars."""
    inner = row.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    found = [""]
    for piece in _PIECE.findall(inner):
        if piece == "|":
            found.append("")
        else:
            found[-1] += piece
    return [cell.strip() for cell in found]


def _side(cell: str) -> str:
    ends = cell.startswith(":"), cell.endswith(":")
    return "^" if all(ends) else ">" if ends[1] else "<"


def _widths(texts: Sequence[Sequence[Line]], columns: int, width: int) -> list[int]:
    """Return the width of each column: the width of its cells, or at most an even share of the line."""
    wanted = [
        max([1, *(width_of("".join(text for text, _ in row[at])) for row in texts if at < len(row))])
        for at in range(columns)
    ]
    room = width - len(_BETWEEN) * (columns - 1)
    if not width or sum(wanted) <= room:
        return wanted
    widths = [0] * columns
    left = sorted(range(columns), key=lambda at: wanted[at])
    while left:  # narrow columns first: the others share the space they leave
        at = left.pop(0)
        widths[at] = min(wanted[at], max(room // (len(left) + 1), _LEAST))
        room -= widths[at]
    return widths


def _row(cells: Sequence[Line], widths: Sequence[int], sides: Sequence[str]) -> Iterator[Line]:
    padded = [*cells, *[[]] * (len(widths) - len(cells))]
    columns = [broken(cell, width) for cell, width in zip(padded, widths, strict=True)]
    for parts in zip_longest(*columns, fillvalue=()):
        line: Line = []
        for at, (part, width) in enumerate(zip(parts, widths, strict=True)):
            free = width - width_of("".join(text for text, _ in part))
            side = sides[at] if at < len(sides) else "<"
            before = {"<": 0, "^": free // 2, ">": free}[side]
            line += [(_BETWEEN, DIM)] if at else []
            line += [(" " * before, ""), *part, (" " * (free - before), "")]
        yield line
