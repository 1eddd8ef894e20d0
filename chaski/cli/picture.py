"""`Picture`: texts and bars as an SVG or PNG file."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TypeAlias

import click
from msgspec import Struct

from chaski.errors import optional_package

__all__ = ["BAR", "COLORS", "ENDINGS", "GAP", "INK", "LINE", "WIDTH", "Picture", "check_picture"]

COLORS = ("#3b6ea8", "#e08a3c", "#5a9e5a", "#b8504a", "#8468a8", "#8a6450", "#d183b8", "#4fa9b0")
INK = "#202020"
WIDTH = 1180
BAR, GAP, LINE = 18, 6, 20
"""Heights of a bar, of the gap between two bars, and of a line of text, in pixels."""
ENDINGS = (".svg", ".png")
_SCALE = 2  # pixels of a PNG file per pixel of the layout, for sharp screens
_ANCHORS = {"start": "la", "middle": "ma", "end": "ra"}

Rectangle: TypeAlias = tuple[float, float, float, float]
"""x, y, width and height."""


def check_picture(option: str, path: Path) -> None:
    """Check that a picture can be written, before anything is measured.

    Raises UsageError, or MissingPackageError for a PNG file without the package that draws it.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise click.UsageError(f"{option}: {path} must be a file whose name ends with .svg or .png")
    if not path.parent.is_dir():
        raise click.UsageError(f"{option}: folder {path.parent} does not exist")
    if ending == ".png":
        with optional_package("pillow", "images", "a PNG picture"):
            import PIL  # noqa: F401


class _Text(Struct, frozen=True):
    x: float
    y: float
    words: str
    size: int
    anchor: str
    weight: str


class _Bars(Struct, frozen=True):
    rectangles: list[Rectangle]
    color: str


class Picture:
    """Texts and bars, from the top to the bottom."""

    def __init__(self) -> None:
        self.y = 10.0
        self._shapes: list[_Text | _Bars] = []

    def text(self, x: float, words: str, size: int = 12, anchor: str = "start", weight: str = "400") -> None:
        """Write words on the line at `y`."""
        self._shapes.append(_Text(x, self.y, words, size, anchor, weight))

    def bars(self, bars: Iterable[Rectangle], color: str) -> None:
        """Fill rectangles."""
        if rectangles := list(bars):
            self._shapes.append(_Bars(rectangles, color))

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

    def write(self, path: Path) -> None:
        """Write a file, in the format of its ending; see `check_picture`. Raises UsageError."""
        try:
            if path.suffix.lower() == ".png":
                self._draw_png(path)
            else:
                path.write_text(self.svg(), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"{path} cannot be written: {error.strerror or error}") from None

    def svg(self) -> str:
        """Return the picture as SVG."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.y:.0f}" '
            f'viewBox="0 0 {WIDTH} {self.y:.0f}" font-family="sans-serif" fill="{INK}">'
        )
        lines = map(_as_svg, self._shapes)
        return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *lines, "</svg>\n"])

    def _draw_png(self, path: Path) -> None:
        from PIL import Image, ImageDraw, ImageFont

        image = Image.new("RGB", (WIDTH * _SCALE, round(self.y) * _SCALE), "#ffffff")
        draw = ImageDraw.Draw(image)
        for shape in self._shapes:
            if isinstance(shape, _Bars):
                for x, y, width, height in (each for each in shape.rectangles if each[2] > 0):
                    corners = [each * _SCALE for each in (x, y, x + width, y + height)]
                    # The corner is part of the rectangle. Thin bars stay visible.
                    corners[2:] = max(corners[2] - 1, corners[0]), max(corners[3] - 1, corners[1])
                    draw.rectangle(corners, shape.color)
            else:
                bold = 0.4 * _SCALE if int(shape.weight) > 400 else 0
                draw.text(
                    (shape.x * _SCALE, shape.y * _SCALE),
                    shape.words,
                    INK,
                    ImageFont.load_default(shape.size * _SCALE),
                    _ANCHORS[shape.anchor],
                    stroke_width=bold,
                )
        image.save(path, "PNG")


def _as_svg(shape: _Text | _Bars) -> str:
    if isinstance(shape, _Text):
        return (
            f'<text x="{shape.x:.1f}" y="{shape.y + shape.size:.1f}" font-size="{shape.size}" '
            f'text-anchor="{shape.anchor}" font-weight="{shape.weight}">{escape(shape.words)}</text>'
        )
    path = "".join(
        f"M{x:.2f} {y:.1f}h{width:.2f}v{height:.1f}h{-width:.2f}z" for x, y, width, height in shape.rectangles
    )
    return f'<path fill="{shape.color}" d="{path}"/>'
