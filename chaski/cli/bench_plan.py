"""The report of `chaski bench --plan`, as tables or as a JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from chaski.cli.layout import filled, section
from chaski.ml import CPUOptions
from chaski.ml.performance_model import Machine
from chaski.ml.trace import PlanTrace, TracedRun
from chaski.progress_bar import ProgressBar
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.loader import load_parts
from chaski.runner.loading.parts import ModelParts, PartOptions
from chaski.runner.loading.pulling import find_or_pull
from chaski.runner.plan_report import PlanReport, Stage, Traces, python_seconds, rows_of

if TYPE_CHECKING:
    from chaski.runner.llm import LLM

__all__ = ["as_json", "tables", "traces_of"]

# Steps whose share of every total is smaller are combined into one row.
_LEAST_SHARE = 0.01
_COLUMNS = 79


def traces_of(model: str, context: int, parallel: int, compute: Callable[[LLM], object]) -> Traces:
    """Return a function that loads the model, runs `compute` on it and returns the traced runs."""

    def runs(threads: int, cut_for: int | None) -> Sequence[TracedRun]:
        trace = PlanTrace(cut_for)
        opened = OpenedModel.of(find_or_pull(model))
        asked = PartOptions(threads=threads, context=context, parallel=parallel)
        parts = ModelParts.of(opened, asked)
        options = [replace(o, trace=trace) if isinstance(o, CPUOptions) else o for o in parts.options]
        with closing(ProgressBar(f"loading {model} for {cut_for or threads} threads")) as bar:
            loaded = load_parts(replace(parts, options=tuple(options)), opened.defaults, progress=bar)
        with loaded:
            loaded.wait_loaded()
            compute(loaded)
        return trace.runs

    return runs


def tables(report: PlanReport) -> str:
    """Return the report as tables."""
    parts = [_table(stage, report) for stage in report.stages]
    return "\n".join([_machine_table(report.machine), *parts, _assumptions(report)])


def as_json(report: PlanReport) -> dict[str, Any]:
    """Return the report as a JSON object. Times are in seconds, and thread counts are keys."""
    return {
        "machine": {
            "processors": report.machine.processors,
            "rates": {count: to_builtins(rates) for count, rates in report.machine.rates.items()},
            "transfer": report.machine.transfer,
            "crowded": dict(report.machine.crowded),
        },
        "assumed": to_builtins(report.memory),
        **{
            stage.name: {
                "tokens": stage.tokens,
                "measured": dict(stage.measured),
                "predicted": {count: found.seconds for count, found in stage.predicted.items()},
                "saturated": dict(stage.saturated),
                "steps": [to_builtins(row) for row in rows_of(stage)],
                "waiting": {count: found.path.waiting for count, found in stage.predicted.items()},
                "python": {count: python_seconds(found) for count, found in stage.predicted.items()},
            }
            for stage in report.stages
        },
    }


def _machine_table(machine: Machine) -> str:
    rows = [
        (
            f"{count} thread(s)",
            f"{rates.bandwidth / 1e9:.1f} GB/s",
            f"{rates.speed:.2f} × one",
            f"barrier {rates.barrier * 1e6:.2f} µs",
        )
        for count, rates in machine.rates.items()
    ]
    if machine.transfer:
        rows.append(("between cores", f"{1e-9 / machine.transfer:.1f} GB/s", "", ""))
    return section("this machine", rows)


def _table(stage: Stage, report: PlanReport) -> str:
    counts = sorted(stage.predicted)
    totals = {count: found.seconds for count, found in stage.predicted.items()}
    rows = rows_of(stage)
    shown = [row for row in rows if max(row.seconds[c] / totals[c] for c in counts) >= _LEAST_SHARE]
    rest = [row for row in rows if row not in shown]
    lines: list[Sequence[object]] = [("step", "steps", "share", *counts)]
    for row in shown:
        share = f"{row.seconds[1] / totals[1]:.1%}"
        times = [_milliseconds(row.seconds[count]) for count in counts]
        lines.append((" ".join(row.kind).strip(), row.count, share, *times))

    def line(name: str, values: Mapping[int, str], *before: object) -> None:
        cells = [*before, *[""] * (2 - len(before))]
        lines.append((name, *cells, *(values.get(count, "") for count in counts)))

    if rest:
        together = {count: _milliseconds(sum(row.seconds[count] for row in rest)) for count in counts}
        share = f"{sum(row.seconds[1] for row in rest) / totals[1]:.1%}"
        line("others", together, sum(row.count for row in rest), share)
    line("waiting", {c: _milliseconds(found.path.waiting) for c, found in stage.predicted.items()})
    line("Python", {c: _milliseconds(python_seconds(found)) for c, found in stage.predicted.items()})
    line("predicted", {count: _milliseconds(seconds) for count, seconds in totals.items()})
    line("measured", {count: _milliseconds(seconds) for count, seconds in stage.measured.items()})
    line("error", {count: f"{totals[count] / seconds - 1:+.1%}" for count, seconds in stage.measured.items()})
    line("tokens/s", {count: _short(stage.tokens / seconds) for count, seconds in totals.items()})
    if report.memory.node_bandwidth is None and stage.saturated:
        slowest = {count: _short(stage.tokens / seconds) for count, seconds in stage.saturated.items()}
        line("no more memory", slowest)
    title = f"{stage.name}, {stage.tokens} token(s): milliseconds of the critical path by threads"
    return section(title, lines, kept=1)


def _assumptions(report: PlanReport) -> str:
    most = max(report.stages[0].measured)
    memory, one = report.memory, report.machine.rates[report.machine.processors]
    if memory.node_bandwidth is None:
        each = one.bandwidth / report.machine.processors / 1e9
        gives = [
            f"memory gives each thread {each:.1f} GB/s or, in the last line,",
            f"at most {one.bandwidth / 1e9:.1f} GB/s to all together; set another value with --bandwidth.",
        ]
    else:
        gives = [f"{memory.nodes} memory node(s) give {memory.node_bandwidth / 1e9:.1f} GB/s each."]
    lines = [
        f"Figures for more than {most} threads are predictions. They assume one such core per thread,",
        "and barriers that take longer with each thread;",
        *gives,
    ]
    return filled(" ".join(lines), "  ", _COLUMNS) + "\n"


def _milliseconds(seconds: float) -> str:
    return _short(seconds * 1e3)


def _short(number: float) -> str:
    """Return a number with three significant digits, or with all digits before the decimal point."""
    return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f}"
