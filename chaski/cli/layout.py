"""How numbers and tables look on the terminal. Text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["duration", "section", "size", "size_in_bytes", "table"]


def duration(seconds: float) -> str:
    """Seconds as Go writes them, without digits that mean nothing: `1m2.5s`, `130.07ms`, `42µs`."""
    if seconds < 1e-3:
        return f"{_short(seconds * 1e6, 3)}µs"
    if seconds < 1:
        return f"{_short(seconds * 1e3, 3)}ms"
    minutes, rest = divmod(round(seconds, 6), 60)
    hours, minutes = divmod(int(minutes), 60)
    prefix = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{prefix}{_short(rest, 6)}s"


def size(count: float) -> str:
    """A count with three digits: `1.24B`, `135M`, `512`."""
    return _scaled(count, ("", "K", "M", "B", "T"))


def size_in_bytes(count: float) -> str:
    """Bytes with three digits: `1.24 GB`, `135 MB`, `512 B`."""
    return _scaled(count, (" B", " kB", " MB", " GB", " TB"))


def table(rows: Iterable[Sequence[object]], indent: str = "    ") -> str:
    """Rows as left-aligned columns, four spaces apart; characters that are not printable are escaped.

    Names and texts come from files: they must not reach the terminal as control sequences.
    """
    cells = [[_printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("    ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join((indent + line).rstrip() for line in lines)


def section(title: str, rows: Iterable[Sequence[object]]) -> str:
    """A titled table, as `show` and `info` print them; nothing without rows."""
    rows = list(rows)
    return f"  {title}\n{table(rows)}\n" if rows else ""


def _printable(text: str) -> str:
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
