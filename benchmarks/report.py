"""Write the measured part of docs/performance.md and its plots: `python -m benchmarks.report`.

It reads the records of `benchmarks.suite`, and replaces the text between the two marks of the page; the rest
of the page is written by hand. Each processor has a section with its own tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import CHASKI
from benchmarks.machine import Machine
from benchmarks.record import LOWER_IS_BETTER, Record
from benchmarks.roofline import Limits, median_limits, scaling
from benchmarks.rows import BATCHES, HISTORIES, ROWS, TYPES, Goal, Row
from benchmarks.suite import RESULTS

__all__ = ["BEGIN", "END", "Comparison", "ReportError", "compared", "drawable", "page_with", "report"]

BEGIN = "<!-- measured: written by benchmarks/report.py -->"
END = "<!-- end of what is measured -->"
_DOCS = Path(__file__).parent.parent / "docs"

_NAMES = {"first_logits": "first logits", "peak_memory": "peak memory"}
_UNITS = {"first_logits": "s", "peak_memory": "GB"}

_SUMMARY = ("type-q4_k_m", "type-q8_0", "batch-8", "history-8192", "start")


class ReportError(Exception):
    """The records or the page do not allow a report."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One value of one row: ours, the best peer's, and the machine's limit."""

    row: Row
    what: str
    ours: float
    peer: str | None
    theirs: float | None
    ratio: float | None
    limit: float | None
    share: float | None
    """The share of the limit, if both were measured together."""

    @property
    def goal(self) -> Goal | None:
        """Return the goal of this value."""
        return next((goal for goal in self.row.goals if goal.what == self.what), None)

    @property
    def is_met(self) -> bool | None:
        """Return whether the goal is reached; None without a goal or a peer."""
        goal = self.goal
        if goal is None or self.ratio is None:
            return None
        is_enough = self.ratio <= goal.ratio if self.what in LOWER_IS_BETTER else self.ratio >= goal.ratio
        return is_enough and (goal.share is None or self.share is None or self.share >= goal.share)


def compared(row: Row, record: Record) -> list[Comparison]:
    """Return all values of the row."""
    found = []
    for what in row.shown:
        peer = record.best_peer(what)
        theirs = ratio = None
        if peer is not None:
            theirs, ratio = record.median(peer, what), record.ratio(what, peer)
        # With speculation, a step makes several tokens.
        limit, share = (None, None) if row.is_own_rival else (record.limit(what), record.share(what))
        found.append(Comparison(row, what, record.median(CHASKI, what), peer, theirs, ratio, limit, share))
    return found


def report(machines: Sequence[Mapping[str, Record]]) -> str:
    """Return the measured part of the page in Markdown: a summary, then a section for each machine.

    Raises:
        ReportError: if there are no records, or if a section has records of several machines.
    """
    if not machines:
        raise ReportError("there are no records; `python -m benchmarks.suite` makes them")
    return "\n\n".join([_summary(machines), *(_section_of_machine(records) for records in machines)])


def _summary(machines: Sequence[Mapping[str, Record]]) -> str:
    """Return a table of the main rows' ratios to the best peer, with a column for each machine."""
    machines = [records for records in machines if not records.keys().isdisjoint(_SUMMARY)]
    places = [_machine_of(list(records.values())) for records in machines]
    ratios: dict[str, list[str]] = {}
    for column, records in enumerate(machines):
        for one in _of(_SUMMARY, _every(records)):
            if one.ratio is not None:
                ratios.setdefault(_what(one), ["–"] * len(machines))[column] = f"{one.ratio:.2f}"
    lines = [
        f"| chaski / best peer | {' | '.join(f'{place.cpu}, {place.isa}' for place in places)} |",
        f"|---|{'--:|' * len(places)}",
        *(f"| {what} | {' | '.join(cells)} |" for what, cells in ratios.items()),
    ]
    return "\n".join(lines)


def _every(records: Mapping[str, Record]) -> list[Comparison]:
    return [one for name, row in ROWS.items() if name in records for one in compared(row, records[name])]


def _section_of_machine(records: Mapping[str, Record]) -> str:
    machine = _machine_of(list(records.values()))
    every = _every(records)
    asked = [comparison for comparison in every if comparison.goal is not None]
    others = [comparison for comparison in every if comparison.goal is None]
    parts = [
        f"### {machine.cpu}, {machine.isa}\n\n" + _where(machine, list(records.values())),
        _limits_table(list(records.values())),
        _comparisons_table(asked),
    ]
    drawn = drawable(records)
    if "rows" in drawn:
        parts.append(_plot("All rows with a goal", machine, "rows"))
    if "type" in drawn:
        parts.append(_plot("By type", machine, "type"))
    for title, plot, numbers in (
        ("By number of sequences", "batch", BATCHES),
        ("By length of history", "history", HISTORIES),
    ):
        if plot in drawn:
            parts.append(_plot(title, machine, plot))
            if points := _of([f"{plot}-{number}" for number in numbers], others):
                parts.append(_comparisons_table(points))
    return "\n\n".join(parts)


def _plot(title: str, machine: Machine, plot: str) -> str:
    return f"![{title}](plots/{machine.folder}-{plot}.svg)"


def drawable(records: Mapping[str, Record]) -> set[str]:
    """Return the names of the plots with enough records."""
    points = {
        "rows": (2, [name for name, row in ROWS.items() if row.goals]),
        "type": (1, [f"type-{kind.lower()}" for kind in TYPES]),
        "batch": (2, [f"batch-{batch}" for batch in BATCHES]),
        "history": (2, [f"history-{length}" for length in HISTORIES]),
    }
    return {
        plot for plot, (least, names) in points.items() if sum(name in records for name in names) >= least
    }


def page_with(page: str, measured: str) -> str:
    """Return the page with its measured part replaced.

    Raises:
        ReportError: if the page does not have both marks, once and in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ReportError(f"the page needs one line {BEGIN} and, after it, one line {END}")
    return f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}"


def _machine_of(records: Sequence[Record]) -> Machine:
    for what in ("cpu", "isa"):
        found = sorted({getattr(record.machine, what) for record in records})
        if len(found) > 1:
            raise ReportError(f"records of one {what} make a section, these are of {', '.join(found)}")
    return max((record.machine for record in records), key=lambda machine: machine.threads)


def _where(machine: Machine, records: Sequence[Record]) -> str:
    dates = sorted(record.date[:10] for record in records)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    ours = ", ".join(sorted({record.chaski for record in records}))
    peers = sorted({record.peer for record in records if record.peer})
    beside = f"against llama.cpp of {', '.join(peers)}" if peers else "alone, without a peer"
    return f"Up to {machine.threads} threads; {when} (UTC).\nchaski {ours} {beside}."


def _limits_table(records: Sequence[Record]) -> str:
    by_threads: dict[int, list[Limits]] = {}
    for record in records:
        for limits in record.limits:
            by_threads.setdefault(limits.threads, []).append(limits)
    lines = [
        "| threads | read, GB/s | int8 | bf16 | fp32 |",
        "|--:|--:|--:|--:|--:|",
    ]
    medians = [median_limits(by_threads[threads]) for threads in sorted(by_threads)]
    for one in medians:
        spread = sorted(limits.read_bandwidth for limits in by_threads[one.threads])
        bf16 = "–" if one.bf16 is None else _digits(one.bf16 / 1e9)
        lines.append(
            f"| {one.threads} | {one.read_bandwidth / 1e9:.1f} ({spread[0] / 1e9:.0f} to "
            f"{spread[-1] / 1e9:.0f}) | {_digits(one.int8 / 1e9)} | {bf16} | {_digits(one.fp32 / 1e9)} |"
        )
    factor = scaling(medians)
    if factor is not None:
        cores = "separate cores" if factor > 0.8 * medians[-1].threads else "threads that share cores"
        lines += ["", f"{medians[-1].threads} threads multiply {factor:.2f} times as fast as one: {cores}."]
    return "\n".join(lines)


def _of(names: Sequence[str], every: Sequence[Comparison]) -> list[Comparison]:
    return [comparison for name in names for comparison in every if comparison.row.name == name]


def _comparisons_table(comparisons: Sequence[Comparison]) -> str:
    lines = [
        "| what | chaski | peer, best | its setting | times | goal | reached | limit | of it | row |",
        "|---|--:|--:|---|--:|--:|---|--:|--:|---|",
    ]
    lines += [_line(comparison) for comparison in comparisons]
    return "\n".join(lines)


def _line(one: Comparison) -> str:
    setting = one.peer.removeprefix("llama.cpp: ") if one.peer else "–"
    reached = {None: "–", True: "yes", False: "**no**"}[one.is_met]
    cells = [
        f"{_what(one)}, {_UNITS.get(one.what, 'tok/s')}",
        _value(one.ours, one.what),
        _value(one.theirs, one.what),
        setting,
        "–" if one.ratio is None else f"**{one.ratio:.2f}**",
        _goal(one),
        reached,
        _value(one.limit, one.what),
        "–" if one.share is None else f"{one.share:.0%}",
        f"`{one.row.name}`",
    ]
    return f"| {' | '.join(cells)} |"


def _what(one: Comparison) -> str:
    return f"{one.row.title}: {_NAMES.get(one.what, one.what)}"


def _goal(one: Comparison) -> str:
    goal = one.goal
    if goal is None:
        return "–"
    sign = "≤" if one.what in LOWER_IS_BETTER else "≥"
    return f"{sign} {goal.ratio:g}" + ("" if goal.share is None else f", {goal.share:.0%}")


def _value(value: float | None, what: str) -> str:
    if value is None:
        return "–"
    if what == "peak_memory":
        return f"{value / 1e9:.2f}"
    return f"{value:.2f}" if what in LOWER_IS_BETTER else _digits(value)


def _digits(value: float) -> str:
    """Format with three significant digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    """Write the page and the plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the folders of records are")
    parser.add_argument("--docs", type=Path, default=_DOCS, help="where performance.md and plots/ are")
    arguments = parser.parse_args()
    machines = [_records_in(folder) for folder in sorted(arguments.results.iterdir()) if folder.is_dir()]
    machines = [records for records in machines if records]
    page = arguments.docs / "performance.md"
    try:
        page.write_text(page_with(page.read_text(), report(machines)))
    except ReportError as error:
        raise SystemExit(str(error)) from error
    # The drawing library is heavy, and the tables do not need it.
    from benchmarks.plots import draw_all

    for records in machines:
        prefix = f"{_machine_of(list(records.values())).folder}-"
        for path in draw_all(records, drawable(records), arguments.docs / "plots", prefix):
            print(path)


def _records_in(folder: Path) -> dict[str, Record]:
    found = map(Record.read, sorted(folder.glob("*.json")))
    return {record.name: record for record in found}


if __name__ == "__main__":
    main()
