"""Numbers and tables formatted for the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

__all__ = [
    "age",
    "duration",
    "file_size",
    "filled",
    "output_columns",
    "prefix_rows",
    "printable",
    "section",
    "size",
    "size_in_bytes",
    "table",
]

_T = TypeVar("_T")
_NARROWEST = 6
_BYTES = {10**12: "TB", 10**9: "GB", 10**6: "MB", 10**3: "KB", 1: "B"}


def duration(seconds: float) -> str:
    """Format seconds in Go's notation, without insignificant digits: `1m2.5s`, `130.07ms`, `42µs`."""
    if seconds < 1e-3:
        return f"{_short(seconds * 1e6, 3)}µs"
    if seconds < 1:
        return f"{_short(seconds * 1e3, 3)}ms"
    minutes, rest = divmod(round(seconds, 6), 60)
    hours, minutes = divmod(int(minutes), 60)
    prefix = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{prefix}{_short(rest, 6)}s"


def size(count: float) -> str:
    """Format a count with three digits: `1.24B`, `135M`, `512`."""
    return _scaled(count, ("", "K", "M", "B", "T"))


def size_in_bytes(count: float) -> str:
    """Format a number of bytes with three digits: `1.24 GB`, `135 MB`, `512 B`."""
    return _scaled(count, (" B", " kB", " MB", " GB", " TB"))


def file_size(count: int) -> str:
    """Format a number of bytes for model tables: `42 GB`, `4.7 GB`, `808 B`."""
    unit = max((unit for unit in _BYTES if count >= unit), default=1)
    value = count / unit
    digits = 0 if value >= 10 or value == int(value) else 1
    return f"{int(value) if value >= 10 else value:.{digits}f} {_BYTES[unit]}"


def age(seconds: float) -> str:
    """Format a rough age: `2 days ago`."""
    return f"{_rough(seconds)} ago"


def prefix_rows(prefixes: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield rows that describe a model's prefix cache on disk, or no rows if it is empty."""
    if prefixes:
        yield "blocks on disk", prefixes["blocks"]
        yield "tokens", prefixes["tokens"]
        yield "size", size_in_bytes(prefixes["bytes"])
        yield "used", age(time.time() - prefixes["used"])


def output_columns() -> int | None:
    """Return the width of the terminal; None if the output is a file or a pipe, whose lines have no limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(rows: Iterable[Sequence[object]], indent: str = "    ", gap: int = 4, kept: int = 0) -> str:
    """Format rows as left-aligned columns, with unprintable characters escaped.

    Names and texts come from files, so they must not reach the terminal as control sequences. In a terminal,
    a table that is too wide has smaller gaps, and its longest cells continue in further lines.

    gap: spaces between columns.
    kept: number of columns, if not 0, after which a table that is too wide is continued below with these.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = output_columns()
    if room is None:
        return "\n".join(_lines(cells, widths, indent, gap))
    room -= len(indent)
    if sum(widths) + gap * (len(widths) - 1) > room:
        gap = 2
    if kept:
        parts = list(_column_groups(widths, room, gap, kept))
        lines = (_lines([_at(row, part) for row in cells], _at(widths, part), indent, gap) for part in parts)
        return "\n\n".join("\n".join(part) for part in lines)
    return "\n".join(_lines(cells, _fitted(widths, room - gap * (len(widths) - 1)), indent, gap))


def section(title: str, rows: Iterable[Sequence[object]], kept: int = 0) -> str:
    """Format a titled table for `show` and `info`, or "" without rows. kept: as for `table`."""
    rows = list(rows)
    return f"{filled(title, '  ')}\n{table(rows, kept=kept)}\n" if rows else ""


def filled(text: str, begin: str = "", usual: int | None = None) -> str:
    """Break a text at words for the terminal; `begin` precedes it, and blanks of that length further lines.

    usual: the width for files and pipes; None leaves their lines whole.
    """
    columns = output_columns() or usual
    if columns is None:
        return begin + text
    return textwrap.fill(
        text,
        max(columns, len(begin) + _NARROWEST),
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int], indent: str, gap: int) -> Iterator[str]:
    for row in cells:
        parts = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            padded = (part.ljust(width) for part, width in zip(line, widths, strict=True))
            yield (indent + (" " * gap).join(padded)).rstrip()


def _broken(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, width, break_on_hyphens=False)


def _fitted(widths: Sequence[int], room: int) -> list[int]:
    """Return the widths with the largest ones reduced, so that all together fit if that is possible."""
    widths = list(widths)
    while sum(widths) > room and (most := max(widths, default=0)) > _NARROWEST:
        widths[widths.index(most)] -= 1
    return widths


def _column_groups(widths: Sequence[int], room: int, gap: int, kept: int) -> Iterator[list[int]]:
    """Yield the columns of each part of a table that does not fit, all with its first `kept` columns."""
    first = list(range(kept))
    begin = sum(widths[:kept]) + gap * (kept - 1)
    part, taken = first, begin
    for column in range(kept, len(widths)):
        if len(part) > kept and taken + gap + widths[column] > room:
            yield part
            part, taken = first, begin
        part, taken = [*part, column], taken + gap + widths[column]
    yield part


def _at(row: Sequence[_T], columns: Iterable[int]) -> list[_T]:
    return [row[column] for column in columns]


def _rough(seconds: float) -> str:
    """Format a duration, rounded like Docker's tools."""
    minutes, hours = int(seconds // 60), int(seconds / 3600 + 0.5)
    if seconds < 60:
        return "Less than a second" if seconds < 1 else _count(int(seconds), "second")
    if minutes < 60:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    units = ((24 * 14, 24, "days"), (24 * 60, 24 * 7, "weeks"), (24 * 365 * 2, 24 * 30, "months"))
    length, name = next(
        ((hours_of, name) for end, hours_of, name in units if hours < end), (24 * 365, "years")
    )
    return f"{hours // length} {name}"


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' * (number != 1)}"


def printable(text: str) -> str:
    """Return the text with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _scaled(count: float, units: Sequence[str]) -> str:
    unit = 0
    while count >= 999.5 and unit < len(units) - 1:
        count /= 1000
        unit += 1
    digits = 0 if unit == 0 or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{_short(count, digits)}{units[unit]}"


def _short(number: float, digits: int) -> str:
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
