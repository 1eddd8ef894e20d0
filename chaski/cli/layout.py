"""Numbers and tables formatted for the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "age",
    "duration",
    "file_size",
    "prefix_rows",
    "printable",
    "section",
    "size",
    "size_in_bytes",
    "table",
]

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


def table(rows: Iterable[Sequence[object]], indent: str = "    ") -> str:
    """Format rows as left-aligned columns, four spaces apart, with unprintable characters escaped.

    Names and texts come from files, so they must not reach the terminal as control sequences.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("    ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join((indent + line).rstrip() for line in lines)


def section(title: str, rows: Iterable[Sequence[object]]) -> str:
    """Format a titled table for `show` and `info`, or "" without rows."""
    rows = list(rows)
    return f"  {title}\n{table(rows)}\n" if rows else ""


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
