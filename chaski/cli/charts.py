"""Bar charts, as characters for a terminal or as a picture in a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, cycle, islice, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import click
from msgspec import Struct

from chaski.cli.picture import BAR, COLORS, ENDINGS, GAP, INK, LINE, WIDTH, Picture, check_picture

__all__ = ["Bar", "Chart", "PlotCommand", "check_plot", "plot_option", "show"]

Command: TypeAlias = Callable[..., Any]

_FILLS = "█▒▓░"
_TICK = "│"
_LEFT, _RIGHT = 200, 230
_TERMINAL = "-"
# Names of pictures, also of those that are refused with a reason.
_PICTURES = (*ENDINGS, ".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".eps", ".html")


class Bar(Struct, frozen=True):
    """A stacked bar with a label before it and text after it.

    ticks: values marked on the bar.
    """

    label: str
    parts: tuple[float, ...]
    text: str
    ticks: tuple[float, ...] = ()

    @property
    def end(self) -> float:
        return max(sum(self.parts), *self.ticks, 0.0) if self.ticks else sum(self.parts)


class Chart(Struct, frozen=True):
    """Bars on one scale that starts at zero.

    names: names of the parts of each bar; empty if bars have one part."""

    title: str
    bars: Sequence[Bar]
    names: tuple[str, ...] = ()

    @property
    def end(self) -> float:
        """The largest value on the scale."""
        return max((bar.end for bar in self.bars), default=0.0) or 1.0


class PlotCommand(click.Command):
    """Accepts `--plot` with or without the name of a picture; any other next word is an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        for word in args:
            if joined and joined[-1] == "--plot" and word.lower().endswith(_PICTURES):
                joined[-1] = f"--plot={word}"
            else:
                joined.append(word)
        words = [f"--plot={_TERMINAL}" if word == "--plot" else word for word in joined]
        return super().parse_args(ctx, words)


def plot_option(about: str) -> Callable[[Command], Command]:
    """Return the option `--plot [FILE]`. Its value is None, "-" for the terminal, or a file name."""
    return click.option(
        "--plot", type=click.Path(dir_okay=False, allow_dash=True), metavar="[FILE.svg|.png]", help=about
    )


def check_plot(plot: str | None) -> None:
    """Check that the requested plot can be written. Raises the errors of `check_picture`."""
    if plot is not None and plot != _TERMINAL:
        check_picture("--plot", Path(plot))


def show(charts: Sequence[Chart], plot: str) -> None:
    """Print charts, or write them to the file named by `plot`."""
    if plot == _TERMINAL:
        click.echo("\n".join(_as_text(charts, shutil.get_terminal_size().columns - 1)))
    else:
        _picture(charts).write(Path(plot))
        click.echo(f"Drew {plot}", err=True)


def _as_text(charts: Sequence[Chart], width: int) -> Iterator[str]:
    for chart in charts:
        yield f"  {chart.title}"
        if chart.names:
            fills = zip(cycle(_FILLS), chart.names)
            yield "    " + "   ".join(f"{fill} {name}" for fill, name in fills)
        left = max(len(bar.label) for bar in chart.bars)
        right = max(len(bar.text) for bar in chart.bars)
        room = max(width - left - right - 6, 10)
        for bar in chart.bars:
            line = _drawn(bar, chart.end, room)
            yield f"    {bar.label:>{left}} {line} {bar.text}".rstrip()
        yield ""


def _drawn(bar: Bar, end: float, room: int) -> str:
    places = [round(value / end * room) for value in accumulate(bar.parts, initial=0.0)]
    line = "".join(fill * (after - before) for fill, (before, after) in zip(cycle(_FILLS), pairwise(places)))
    cells = list(line or ("▏" if any(bar.parts) else ""))
    for tick in bar.ticks:
        place = min(round(tick / end * room), room - 1)
        cells += [" "] * (place + 1 - len(cells))
        cells[place] = _TICK
    return "".join(cells)


def _picture(charts: Sequence[Chart]) -> Picture:
    picture = Picture()
    for chart in charts:
        picture.text(10, chart.title, 16, weight="600")
        picture.y += 28
        colors = list(islice(cycle(COLORS), max(len(chart.names), 1)))
        if chart.names:
            picture.legend(zip(chart.names, colors, strict=True))
        for bar in chart.bars:
            _draw(picture, bar, (WIDTH - _LEFT - _RIGHT) / chart.end, colors)
        picture.y += LINE
    return picture


def _draw(picture: Picture, bar: Bar, scale: float, colors: Sequence[str]) -> None:
    picture.text(_LEFT - 8, bar.label, anchor="end")
    at = float(_LEFT)
    for part, color in zip(bar.parts, colors, strict=True):
        picture.bars([(at, picture.y, part * scale, BAR)], color)
        at += part * scale
    picture.bars([(_LEFT + tick * scale - 1, picture.y - 2, 2, BAR + 4) for tick in bar.ticks], INK)
    picture.text(_LEFT + bar.end * scale + 8, bar.text)
    picture.y += BAR + GAP
