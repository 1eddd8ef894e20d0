"""A report on the scaling of a model: the time of each part of its batches, and the gain of more threads.

Runs on one thread, cut as for more of them, go through `chaski.ml.performance_model`; runs on all threads
show how far the prediction is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from statistics import median

import numpy as np
from msgspec import Struct

from chaski.ml import measure_machine
from chaski.ml.machine import physical_cores
from chaski.ml.performance_model import Batch, Machine, Memory, Prediction, predict
from chaski.ml.trace import Column, TracedRun, TracedStep

__all__ = [
    "MORE",
    "Bar",
    "PlanReport",
    "Row",
    "Runs",
    "Stage",
    "Traces",
    "bars_of",
    "bars_of_run",
    "measure_plan",
    "python_seconds",
    "rows_of",
    "stages",
    "thread_counts",
]

MORE = (8, 16, 64, 128)
"""Threads of larger machines, which are predicted."""

Traces = Callable[[int, int | None], Sequence[TracedRun]]
"""The runs of a model on a number of threads; the second number is that of the plan's cut, if it differs."""


class Runs(Struct, frozen=True, eq=False):
    """Batches of one kind: the prompt's, or those of decoding. `after`: the caller alone, seconds."""

    runs: Sequence[TracedRun]
    seconds: float
    after: float


class Stage(Struct, frozen=True, eq=False):
    """Prefill or decode, a batch of `tokens`: seconds by number of threads.

    `saturated` has the prediction if memory gives no more than the measured rate.
    """

    name: str
    tokens: int
    measured: Mapping[int, float]
    predicted: Mapping[int, Prediction]
    saturated: Mapping[int, float]
    run: TracedRun
    """A run on all threads."""


class PlanReport(Struct, frozen=True, eq=False):
    """All measurements and predictions, and the assumptions about larger machines."""

    machine: Machine
    memory: Memory
    stages: Sequence[Stage]


def stages(runs: Sequence[TracedRun], batch: int) -> dict[str, Runs]:
    """The batches of the prompt that see most, and those of decoding, `batch` tokens each.

    The first batch of each kind warms up caches, and does not count if there are more.
    """
    largest = max((run.steps for run in runs), key=lambda steps: sum(step.weight_bytes for step in steps))
    runs = [run for run in runs if run.steps is largest]
    most = max(_extent(run) for run in runs)
    prompts = [run for run in runs if _extent(run) == most]
    pairs = [
        (run, behind)
        for run, behind in pairwise(runs)
        if run.sizes["tokens"] == behind.sizes["tokens"] == batch and run not in prompts
    ]
    prompts, pairs = prompts[1:] or prompts, pairs[1:] or pairs
    return {
        "prefill": Runs(prompts, _seconds(run.ended - run.launched for run in prompts), 0.0),
        "decode": Runs(
            [run for run, _ in pairs],
            _seconds(behind.launched - run.launched for run, behind in pairs),
            _seconds(behind.launched - run.ended for run, behind in pairs),
        ),
    }


def thread_counts(most: int) -> list[int]:
    """Numbers of threads to measure: one, powers of two, and `most`."""
    return sorted({most, *(1 << i for i in range(most.bit_length()))})


def measure_plan(
    traces: Traces,
    counts: Sequence[int],
    batch: int,
    isa: str,
    memory: Memory,
    more: Sequence[int] = MORE,
) -> PlanReport:
    """Measure these numbers of threads, one among them, and predict them and `more`, which need not exist.

    Decoding has batches of `batch` tokens. Raises OptionError if they are too many.
    """
    processors = physical_cores()
    crowds = [count for count in counts if count > processors]
    measured, alone, machines = {}, {}, {}
    weight_bytes = 0
    for count in sorted(counts):
        # One after the other, and memory before and after: machines are faster at one time than at another.
        before = measure_machine(processors, weight_bytes, isa, crowds) if weight_bytes else None
        measured[count] = stages(traces(count, None), batch)
        weight_bytes = int(_bytes_read(measured[count]["decode"].runs[-1]))
        after = measure_machine(processors, weight_bytes, isa, crowds)
        machines[count] = after.between(before or after)
        alone[count] = measured[1] if count == 1 else stages(traces(1, count), batch)
    more = [count for count in more if count > max(counts)]
    alone.update({count: stages(traces(1, count), batch) for count in more})
    machine = reduce(Machine.better_of, machines.values())
    found = []
    for name in ("prefill", "decode"):
        batches = {count: Batch.of(of[name].runs, of[name].after) for count, of in alone.items()}
        saturated = Memory(machine.rates[processors].bandwidth)
        found.append(
            Stage(
                name,
                batches[1].sizes["tokens"],
                {count: measured[count][name].seconds for count in counts},
                {
                    count: predict(
                        of,
                        machines.get(count, machine),
                        count,
                        processors if count in counts else None,
                        memory,
                    )
                    for count, of in batches.items()
                },
                {count: predict(batches[count], machine, count, None, saturated).seconds for count in more},
                measured[max(counts)][name].runs[-1],
            )
        )
    return PlanReport(machine, memory, found)


def _bytes_read(run: TracedRun) -> float:
    """Bytes of weights, keys and values that a run reads at least once."""
    return sum(step.bytes_read(run.sizes) for step in run.steps)


class Row(Struct, frozen=True):
    """All steps of one kind: bytes that they read, seconds of them on the critical path by threads."""

    operation: str
    weights: str
    count: int
    num_bytes: float
    seconds: Mapping[int, float]

    @property
    def kind(self) -> tuple[str, str]:
        """The operation and its weights."""
        return self.operation, self.weights


def rows_of(stage: Stage) -> list[Row]:
    """Steps by kind, the longest on one thread first."""
    kinds: dict[tuple[str, str], list[int]] = {}
    plan = stage.predicted[1].batch.plan
    sizes = stage.predicted[1].batch.sizes
    computed = set(stage.predicted[1].batch.steps.tolist())
    for index, step in enumerate(plan):
        if index in computed:
            kinds.setdefault(_kind(step), []).append(index)
    rows = [
        Row(
            operation,
            weights,
            len(indices),
            sum(plan[index].bytes_read(sizes) for index in indices),
            {count: _on_path(found, indices) for count, found in stage.predicted.items()},
        )
        for (operation, weights), indices in kinds.items()
    ]
    return sorted(rows, key=lambda row: row.seconds[1], reverse=True)


class Bar(Struct, frozen=True):
    """A piece on its thread: seconds since the launch."""

    kind: tuple[str, str]
    lane: int
    started: float
    ended: float


def bars_of_run(run: TracedRun) -> list[Bar]:
    """The pieces of a run, as measured."""
    columns = [Column.STEP, Column.THREAD, Column.STARTED, Column.ENDED]
    return [
        Bar(_kind(run.steps[step]), lane, (started - run.launched) * 1e-9, (ended - run.launched) * 1e-9)
        for step, lane, started, ended in run.pieces[:, columns].tolist()
    ]


def bars_of(found: Prediction) -> list[Bar]:
    """The pieces of a batch, as predicted."""
    kinds = [_kind(step) for step in found.batch.plan]
    steps = (kinds[step] for step in found.batch.steps.tolist())
    columns = (steps, found.lanes.tolist(), found.started.tolist(), found.ended.tolist())
    return [Bar(*values) for values in zip(*columns, strict=True)]


def python_seconds(found: Prediction) -> float:
    """Seconds in which all threads wait for the caller."""
    steps = float((found.ended - found.started)[found.path.on_path].sum())
    return max(found.seconds - found.path.waiting - steps, 0.0)


def _kind(step: TracedStep) -> tuple[str, str]:
    return step.operation, step.weights


def _on_path(found: Prediction, steps: Sequence[int]) -> float:
    chosen = found.path.on_path & np.isin(found.batch.steps, steps)
    return float((found.ended - found.started)[chosen].sum())


def _extent(run: TracedRun) -> tuple[int, int]:
    return run.sizes["tokens"], run.sizes.get("history", 0)


def _seconds(nanoseconds: Iterable[int]) -> float:
    return float(median(nanoseconds)) * 1e-9
