"""An SVG picture of a plan report: the parts of the critical path, and a timeline of each thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from chaski.cli.picture import BAR, COLORS, GAP, INK, LINE, WIDTH, Picture
from chaski.runner.plan_report import (
    Bar,
    PlanReport,
    Row,
    Stage,
    bars_of,
    bars_of_run,
    python_seconds,
    rows_of,
)

__all__ = ["draw"]

_OTHERS, _WAITING, _PYTHON = "#a8a8a8", "#f0e4b8", "#d8c040"

_LEFT, _RIGHT = 130, 170
_LENGTH = WIDTH - _LEFT - _RIGHT  # pixels of the longest bar

# Bars closer together than this many pixels are drawn as one.
_NEAR = 0.15

Colors = Mapping[tuple[str, str], str]
"""The colors of step kinds with their own color."""

Span = tuple[float, float, int]
"""Start and end of a bar in seconds, and its lane."""


def draw(report: PlanReport) -> Picture:
    """Draw prefill and decode, one below the other."""
    picture = Picture()
    for stage in report.stages:
        _draw_stage(picture, stage)
    return picture


def _draw_stage(picture: Picture, stage: Stage) -> None:
    rows = rows_of(stage)
    colors = dict(zip((row.kind for row in rows), COLORS, strict=False))
    picture.text(10, f"{stage.name}, {stage.tokens} token(s) a batch", 16, weight="600")
    picture.y += 28
    names = [(" ".join(row.kind).strip(), colors[row.kind]) for row in rows if row.kind in colors]
    picture.legend([*names, ("other steps", _OTHERS), ("waiting", _WAITING), ("Python alone", _PYTHON)])
    _critical_paths(picture, stage, rows, colors)
    _timelines(picture, stage, colors)
    picture.y += 16


def _critical_paths(picture: Picture, stage: Stage, rows: Sequence[Row], colors: Colors) -> None:
    """Draw a bar per number of threads, with a mark at the measured time."""
    picture.text(10, "the predicted critical path by threads; marks show measured times", weight="600")
    picture.y += LINE
    longest = max([found.seconds for found in stage.predicted.values()] + list(stage.measured.values()))
    for count, found in sorted(stage.predicted.items()):
        parts = [(row.seconds[count], colors.get(row.kind, _OTHERS)) for row in rows]
        parts += [(found.path.waiting, _WAITING), (python_seconds(found), _PYTHON)]
        at = float(_LEFT)
        for seconds, color in parts:
            width = seconds / longest * _LENGTH
            picture.bars([(at, picture.y, width, BAR)], color)
            at += width
        if count in stage.measured:
            x = _LEFT + stage.measured[count] / longest * _LENGTH
            picture.bars([(x - 1, picture.y - 3, 2, BAR + 6)], INK)
            at = max(at, x)
        picture.text(_LEFT - 8, f"{count} thread(s)", anchor="end")
        rate = f"{stage.tokens / found.seconds:.0f} tokens/s"
        picture.text(at + 8, f"{found.seconds * 1e3:.2f} ms, {rate}")
        picture.y += BAR + GAP
    picture.y += 8


def _timelines(picture: Picture, stage: Stage, colors: Colors) -> None:
    """Draw the threads of a run on all cores, and of the smallest thread count that was not measured."""
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


def _timeline(picture: Picture, bars: Sequence[Bar], colors: Colors, seconds: float, count: int) -> None:
    picture.y += LINE
    scale = (WIDTH - _LEFT - 10) / max(seconds, 1e-9)
    tops = [picture.y + lane * (BAR + 2) for lane in range(count)]
    picture.bars([(_LEFT, top, seconds * scale, BAR) for top in tops], _WAITING)
    by_color: dict[str, list[Span]] = {}
    for bar in bars:
        color = colors.get(bar.kind, _OTHERS)
        by_color.setdefault(color, []).append((bar.started, bar.ended, bar.lane))
    for color, spans in by_color.items():
        picture.bars(
            (
                (_LEFT + started * scale, tops[lane], (ended - started) * scale, BAR)
                for started, ended, lane in _joined(spans, _NEAR / scale)
            ),
            color,
        )
    for lane in range(count):
        picture.text(_LEFT - 8, f"thread {lane}", anchor="end")
        picture.y += BAR + 2
    picture.y += 12


def _joined(bars: Iterable[Span], near: float) -> Iterator[Span]:
    """Join bars of a lane that are closer together than `near`."""
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
