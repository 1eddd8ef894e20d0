"""Plots of the records: all rows, and speed by type, by number of sequences and by length of history.

The first plot shows the ratio of chaski to the best peer in each row: rates divided by the peer's, and the
peer's seconds and bytes divided by ours. Each other plot shows chaski, the best setting of llama.cpp and the
limit of the machine, all measured in the same runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.engines import CHASKI
from benchmarks.record import LOWER_IS_BETTER, Record
from benchmarks.rows import BATCHES, HISTORIES, ROWS, TYPES, Goal

__all__ = ["draw_all"]

_OURS, _THEIRS, _LIMIT = "#c8452b", "#7d93a8", "#2b2b2b"
_STYLE = Path(__file__).with_name("plots.mplstyle")


def draw_all(
    records: Mapping[str, Record], names: Collection[str], folder: Path, prefix: str = ""
) -> list[Path]:
    """Draw the plots with these names (rows, type, batch, history); return the written SVG files.

    The name of a file is `prefix` and the name of the plot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(fname=_STYLE):
        drawings = {"rows": _by_row, "type": _by_type, "batch": _by_batch, "history": _by_history}
        for name, draw in drawings.items():
            if name in names:
                path = folder / f"{prefix}{name}.svg"
                draw(records).savefig(path, metadata={"Date": None})
                written.append(path)
    return written


def _by_row(records: Mapping[str, Record]) -> Figure:
    """Draw a bar for each value with a goal: its ratio to the best peer's, and the goal."""
    found = [
        (
            f"{row.title}: {goal.what.replace('_', ' ')}",
            _times(records[name], goal),
            _better(goal, goal.ratio),
        )
        for name, row in ROWS.items()
        if name in records
        for goal in row.goals
    ]
    bars = [(title, times, goal) for title, times, goal in found if times is not None]
    figure = Figure(figsize=(10.4, 1.1 + 0.24 * len(bars)), layout="constrained", facecolor="white")
    axis = figure.add_subplot()
    for place, (_, times, goal) in enumerate(bars):
        axis.barh(place, times, 0.7, color=_OURS if times >= 1 else _THEIRS)
        axis.plot(
            (goal, goal), (place - 0.45, place + 0.45), color=_LIMIT, lw=1.6, label=_once("goal", place)
        )
        axis.annotate(
            f"{times:.2f}", (times, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.axvline(1, color=_LIMIT, lw=1, ls="--", label="the best peer")
    axis.set_yticks(range(len(bars)), [title for title, _, _ in bars], fontsize=8)
    axis.set_ylim(len(bars) - 0.4, -0.6)
    axis.set_xlim(0, max(max(times, goal) for _, times, goal in bars) * 1.08)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("times as good as the best peer")
    _legend(figure, axis)
    return figure


def _times(record: Record, goal: Goal) -> float | None:
    """Return the ratio of chaski to the best peer; None without a peer."""
    peer = record.best_peer(goal.what)
    return None if peer is None else _better(goal, record.ratio(goal.what, peer))


def _better(goal: Goal, ratio: float) -> float:
    """Return a ratio for which more is better."""
    return 1 / ratio if goal.what in LOWER_IS_BETTER else ratio


def _by_type(records: Mapping[str, Record]) -> Figure:
    names = [kind for kind in TYPES if f"type-{kind.lower()}" in records]
    found = [records[f"type-{kind.lower()}"] for kind in names]
    figure, axes = _panels(2)
    for axis, what, title in zip(
        axes, ("prefill", "decode"), ("Prefill, a prompt of 512 tokens", "Decode, one sequence"), strict=True
    ):
        _bars(axis, names, found, what)
        axis.set_title(title)
    _legend(figure, axes[0])
    return figure


def _bars(axis: Axes, names: Sequence[str], records: Sequence[Record], what: str) -> None:
    width = 0.38
    for place, record in enumerate(records):
        _bar(axis, place - width / 2, width, record.median(CHASKI, what), _OURS, _once("chaski", place))
        peer = record.best_peer(what)
        if peer is not None:
            label = _once("llama.cpp, best", place)
            _bar(axis, place + width / 2, width, record.median(peer, what), _THEIRS, label)
        limit = record.limit(what)
        if limit is not None:
            ends = (place - 0.45, place + 0.45)
            label = _once("limit of the machine", place)
            axis.plot(ends, (limit, limit), "--", color=_LIMIT, lw=1.2, label=label)
    axis.set_xticks(range(len(names)), names, fontsize=8, rotation=30, ha="right", rotation_mode="anchor")
    axis.tick_params(axis="x", length=0)
    axis.set_ylabel("tokens per second")


def _bar(axis: Axes, x: float, width: float, value: float, color: str, label: str | None) -> None:
    axis.bar(x, value, width, color=color, label=label)
    axis.annotate(
        f"{value:.0f}",
        (x, value),
        xytext=(0, -2),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7,
        color="white",
    )


def _by_batch(records: Mapping[str, Record]) -> Figure:
    points = {batch: records[f"batch-{batch}"] for batch in BATCHES if f"batch-{batch}" in records}
    figure, (axis,) = _panels(1)
    _lines(axis, points, "decode")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xticks(list(points), [str(batch) for batch in points])
    axis.yaxis.set_major_formatter("{x:.0f}")
    axis.minorticks_off()
    axis.margins(y=0.1)
    axis.set_title("Decode of several sequences, Q4_K_M")
    axis.set_xlabel("sequences at a time")
    axis.set_ylabel("tokens per second, all together")
    _legend(figure, axis)
    return figure


def _by_history(records: Mapping[str, Record]) -> Figure:
    points = {length: records[f"history-{length}"] for length in HISTORIES if f"history-{length}" in records}
    figure, axes = _panels(2)
    _lines(axes[0], {length: record for length, record in points.items() if length}, "prefill")
    axes[0].set_title("Prefill, Q4_K_M")
    axes[0].set_xlabel("tokens of the prompt")
    _lines(axes[1], points, "decode")
    axes[1].set_title("Decode, Q4_K_M")
    axes[1].set_xlabel("tokens of history")
    for axis in axes:
        axis.set_ylabel("tokens per second")
        axis.set_xticks([length for length in points if length != 1024 or len(points) < 4])
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_ylim(bottom=0)
    _legend(figure, axes[0])
    return figure


def _lines(axis: Axes, points: Mapping[int, Record], what: str) -> None:
    ours = {x: record.median(CHASKI, what) for x, record in points.items()}
    axis.plot(list(ours), list(ours.values()), "o-", color=_OURS, lw=2, ms=5, label="chaski")
    for x, value in ours.items():
        axis.annotate(
            f"{value:.0f}",
            (x, value),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=_OURS,
        )
    peers = {x: (record, record.best_peer(what)) for x, record in points.items()}
    theirs = {x: record.median(peer, what) for x, (record, peer) in peers.items() if peer is not None}
    if theirs:
        axis.plot(
            list(theirs), list(theirs.values()), "s-", color=_THEIRS, lw=2, ms=4.5, label="llama.cpp, best"
        )
    limits = {x: limit for x, record in points.items() if (limit := record.limit(what)) is not None}
    if limits:
        axis.plot(
            list(limits), list(limits.values()), "--", color=_LIMIT, lw=1.2, label="limit of the machine"
        )


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.2 * count if count > 1 else 6.4, 3.8), layout="constrained", facecolor="white")
    return figure, [figure.add_subplot(1, count, place + 1) for place in range(count)]


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _once(label: str, place: int) -> str | None:
    """Return a label for only the first of its kind."""
    return label if place == 0 else None
