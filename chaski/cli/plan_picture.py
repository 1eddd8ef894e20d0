"""A picture of a plan report, as SVG: what the critical path is made of, and what each thread does when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from chaski.runner.scaling import Bar, PlanReport, Row, Stage, bars_of, bars_of_run, python_seconds, rows_of

__all__ = ["draw"]

_COLORS = ("#3b6ea8", "#e08a3c", "#5a9e5a", "#b8504a", "#8468a8", "#8a6450", "#d183b8", "#4fa9b0")
_OTHERS, _WAITING, _PYTHON, _INK = "#a8a8a8", "#f0e4b8", "#d8c040", "#202020"

_WIDTH, _LEFT, _RIGHT = 1180, 130, 170
_LENGTH = _WIDTH - _LEFT - _RIGHT  # of the longest bar
_BAR, _GAP, _LINE = 18, 6, 20

# Bars that are closer to each other than this are drawn as one, in pixels.
_NEAR = 0.15

Colors = Mapping[tuple[str, str], str]
"""The colors of the kinds of steps that have one of their own."""

Span = tuple[float, float, int]
"""Where a bar begins and ends, in seconds, and its lane."""


def draw(report: PlanReport) -> str:
    """Draw prefill and decode, one below the other."""
    picture = _Picture()
    for stage in report.stages:
        _draw_stage(picture, stage)
    return picture.svg()


class _Picture:
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

    def svg(self) -> str:
        """All lines as a file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{self.y:.0f}" '
            f'viewBox="0 0 {_WIDTH} {self.y:.0f}" font-family="sans-serif" fill="{_INK}">'
        )
        return "\n".join(
            [head, '<rect width="100%" height="100%" fill="#ffffff"/>', *self._lines, "</svg>\n"]
        )


def _draw_stage(picture: _Picture, stage: Stage) -> None:
    rows = rows_of(stage)
    colors = dict(zip((row.kind for row in rows), _COLORS, strict=False))
    picture.text(10, f"{stage.name}, {stage.tokens} token(s) a batch", 16, weight="600")
    picture.y += 28
    _legend(picture, rows, colors)
    _critical_paths(picture, stage, rows, colors)
    _timelines(picture, stage, colors)
    picture.y += 16


def _legend(picture: _Picture, rows: Sequence[Row], colors: Colors) -> None:
    names = [(" ".join(row.kind).strip(), colors[row.kind]) for row in rows if row.kind in colors]
    names += [("other steps", _OTHERS), ("waiting", _WAITING), ("Python alone", _PYTHON)]
    x = 10.0
    for name, color in names:
        width = 30 + 7.2 * len(name)
        if x + width > _WIDTH:
            x, picture.y = 10.0, picture.y + _LINE
        picture.bars([(x, picture.y + 2, 10, 10)], color)
        picture.text(x + 15, name)
        x += width
    picture.y += _LINE + 6


def _critical_paths(picture: _Picture, stage: Stage, rows: Sequence[Row], colors: Colors) -> None:
    """A bar for each number of threads; a mark where what was measured ends."""
    picture.text(
        10, "the critical path by threads, as predicted; the mark is what was measured", weight="600"
    )
    picture.y += _LINE
    longest = max([found.seconds for found in stage.predicted.values()] + list(stage.measured.values()))
    for count, found in sorted(stage.predicted.items()):
        parts = [(row.seconds[count], colors.get(row.kind, _OTHERS)) for row in rows]
        parts += [(found.path.waiting, _WAITING), (python_seconds(found), _PYTHON)]
        at = float(_LEFT)
        for seconds, color in parts:
            width = seconds / longest * _LENGTH
            picture.bars([(at, picture.y, width, _BAR)], color)
            at += width
        if count in stage.measured:
            x = _LEFT + stage.measured[count] / longest * _LENGTH
            picture.bars([(x - 1, picture.y - 3, 2, _BAR + 6)], _INK)
            at = max(at, x)
        picture.text(_LEFT - 8, f"{count} thread(s)", anchor="end")
        rate = f"{stage.tokens / found.seconds:.0f} tokens/s"
        picture.text(at + 8, f"{found.seconds * 1e3:.2f} ms, {rate}")
        picture.y += _BAR + _GAP
    picture.y += 8


def _timelines(picture: _Picture, stage: Stage, colors: Colors) -> None:
    """Each thread of a run on all of them, and of the least number that was not measured."""
    count = max(stage.measured)
    seconds = (stage.run.ended - stage.run.launched) * 1e-9
    picture.text(10, f"each thread, as measured on {count}: {seconds * 1e3:.2f} ms", weight="600")
    _timeline(picture, bars_of_run(stage.run), colors, seconds, count)
    more = [count for count in sorted(stage.predicted) if count not in stage.measured]
    if more:
        found = stage.predicted[more[0]]
        seconds = found.seconds - found.batch.after
        picture.text(10, f"each thread, as predicted for {more[0]}: {seconds * 1e3:.2f} ms", weight="600")
        _timeline(picture, bars_of(found), colors, seconds, more[0])


def _timeline(picture: _Picture, bars: Sequence[Bar], colors: Colors, seconds: float, count: int) -> None:
    picture.y += _LINE
    scale = (_WIDTH - _LEFT - 10) / max(seconds, 1e-9)
    tops = [picture.y + lane * (_BAR + 2) for lane in range(count)]
    picture.bars([(_LEFT, top, seconds * scale, _BAR) for top in tops], _WAITING)
    by_color: dict[str, list[Span]] = {}
    for bar in bars:
        color = colors.get(bar.kind, _OTHERS)
        by_color.setdefault(color, []).append((bar.started, bar.ended, bar.lane))
    for color, spans in by_color.items():
        picture.bars(
            (
                (_LEFT + started * scale, tops[lane], (ended - started) * scale, _BAR)
                for started, ended, lane in _joined(spans, _NEAR / scale)
            ),
            color,
        )
    for lane in range(count):
        picture.text(_LEFT - 8, f"thread {lane}", anchor="end")
        picture.y += _BAR + 2
    picture.y += 12


def _joined(bars: Iterable[Span], near: float) -> Iterator[Span]:
    """Join bars of a lane that are nearer to each other than that."""
    open_bars: dict[int, tuple[float, float]] = {}
    for started, ended, lane in sorted(bars):
        if lane in open_bars and started - open_bars[lane][1] <= near:
            open_bars[lane] = open_bars[lane][0], ended
            continue
        if lane in open_bars:
            yield (*open_bars[lane], lane)
        open_bars[lane] = started, ended
    for lane, bar in open_bars.items():
        yield (*bar, lane)
