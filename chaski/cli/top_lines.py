"""Building blocks of the `chaski top` screen: fitted texts, bars and styled lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from chaski.cli.layout import printable
from chaski.cli.styled_lines import Span
from chaski.cli.wrap import cells

__all__ = [
    "BOLD",
    "CHOSEN",
    "FREE",
    "GENERATED",
    "PROBLEM",
    "Line",
    "as_ansi",
    "as_text",
    "bar",
    "fit",
    "fit_right",
    "sparks",
]

Line: TypeAlias = list[Span]

# The default color, green, cyan, magenta and red are readable on dark and light terminals. Colors only repeat
# information that the characters show.
BOLD, CHOSEN, PROBLEM = "1", "7", "1;31"
CACHED, COMPUTED, GENERATED, FREE = "36", "", "32", "90"
_FILLS = ("▒", "█", "▓")
_STYLES = (CACHED, COMPUTED, GENERATED)
_EMPTY = "·"
_SPARKS = "▁▂▃▄▅▆▇█"


def fit(text: object, width: int) -> str:
    """Return a text cut or padded to `width` columns, with unprintable characters escaped."""
    shown, taken = "", 0
    text = printable(str(text)[: 8 * width])
    for index, char in enumerate(text):
        left = width - taken - cells(char)
        if left < 0 or (left == 0 and index + 1 < len(text)):
            return shown + "…" + " " * (width - taken - 1) if width > taken else shown
        shown, taken = shown + char, taken + cells(char)
    return shown + " " * (width - taken)


def fit_right(text: object, width: int) -> str:
    """Return the same, aligned to the right."""
    return fit(text, width).rstrip().rjust(width)


def bar(parts: Sequence[float], end: float, width: int) -> Line:
    """Return a stacked bar of up to three parts that is full at `end`.

    Every part above zero gets at least one column.
    """
    line: Line = []
    begun, total = 0, 0.0
    for part, fill, style in zip(parts, _FILLS, _STYLES, strict=False):
        total += max(part, 0)
        stop = round(width * total / end) if end > 0 else 0
        stop = min(max(stop, begun + (part > 0)), width)
        line.append((fill * (stop - begun), style))
        begun = stop
    return [*line, (_EMPTY * (width - begun), FREE)]


def sparks(values: Iterable[float]) -> str:
    """Return a column for each value; the highest value fills the line's height."""
    values = list(values)
    highest = max(values, default=0) or 1
    return "".join(_SPARKS[round((len(_SPARKS) - 1) * max(value, 0) / highest)] for value in values)


def as_text(lines: Iterable[Line]) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def as_ansi(lines: Iterable[Line], in_color: bool) -> str:
    """Return the lines with terminal sequences; without color, only bold and inverted text."""
    return "\n".join("".join(_styled(text, style, in_color) for text, style in line) for line in lines)


def _styled(text: str, style: str, in_color: bool) -> str:
    if not in_color:
        style = ";".join(number for number in style.split(";") if number in (BOLD, CHOSEN))
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text
