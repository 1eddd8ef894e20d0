"""`Picture`: texts and bars as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["BAR", "COLORS", "GAP", "INK", "LINE", "WIDTH", "Picture"]

COLORS = ("#3b6ea8", "#e08a3c", "#5a9e5a", "#b8504a", "#8468a8", "#8a6450", "#d183b8", "#4fa9b0")
INK = "#202020"
WIDTH = 1180
BAR, GAP, LINE = 18, 6, 20
"""Heights of a bar, of the gap between two bars, and of a line of text, in pixels."""


class Picture:
    """Lines of SVG, from the top to the bottom."""

    def __init__(self) -> None:
        self.y = 10.0
        self._lines: list[str] = []

    def text(self, x: float, words: str, size: int = 12, anchor: str = "start", weight: str = "400") -> None:
        """Write words on the line at `y`."""
        self._lines.append(
            f'<text x="{x:.1f}" y="{self.y + size:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>'
        )

    def bars(self, bars: Iterable[tuple[float, float, float, float]], color: str) -> None:
        """Fill rectangles: x, y, width, height."""
        path = "".join(
            f"M{x:.2f} {y:.1f}h{width:.2f}v{height:.1f}h{-width:.2f}z" for x, y, width, height in bars
        )
        if path:
            self._lines.append(f'<path fill="{color}" d="{path}"/>')

    def legend(self, names: Iterable[tuple[str, str]]) -> None:
        """Write names next to squares of their colors, on as many lines as needed."""
        x = 10.0
        for name, color in names:
            width = 30 + 7.2 * len(name)
            if x + width > WIDTH:
                x, self.y = 10.0, self.y + LINE
            self.bars([(x, self.y + 2, 10, 10)], color)
            self.text(x + 15, name)
            x += width
        self.y += LINE + 6

    def svg(self) -> str:
        """All lines as a file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.y:.0f}" '
            f'viewBox="0 0 {WIDTH} {self.y:.0f}" font-family="sans-serif" fill="{INK}">'
        )
        return "\n".join(
            [head, '<rect width="100%" height="100%" fill="#ffffff"/>', *self._lines, "</svg>\n"]
        )
