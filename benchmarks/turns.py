"""Run engines in turns on one workload, and keep a record that can continue after an interruption."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.engines import CHASKI, Engine, EngineError, Process, Values, Workload
from benchmarks.record import Record, Run
from benchmarks.roofline import Limits, measure

__all__ = ["Deadline", "run_in_turns", "warm_page_cache"]

# A setting this much slower than the best one after a round is not run again.
_NOT_RUN_AGAIN = 0.6


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time before which every started run is expected to end."""

    at: float

    @classmethod
    def in_minutes(cls, minutes: float | None) -> Deadline:
        return cls(float("inf") if minutes is None else time.monotonic() + 60 * minutes)

    def allows(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.at


def run_in_turns(
    record: Record,
    model: Path,
    engines: Sequence[Engine],
    rounds: int,
    whats: Sequence[str],
    deadline: Deadline,
    save: Callable[[], None],
) -> bool:
    """Run the missing rounds, ours first in each; return whether all rounds are complete.

    Processes that can measure repeatedly are kept until the end, so that a turn takes seconds. An interrupted
    round begins again with our own engine, so that each ratio compares adjacent runs. A peer that crashes is
    dropped.

    Raises:
        EngineError: if our own engine crashes.
    """
    warm_page_cache(model)
    with _Processes(model, record.workload) as processes:
        for number in range(1, rounds + 1):
            missing = [engine for engine in engines if _is_missing(record, engine, number)]
            if missing and missing[0].name != CHASKI and engines[0].name == CHASKI:
                missing.insert(0, engines[0])
            for engine in missing:
                if not deadline.allows(_expected_seconds(record, engine)):
                    return False
                limits = measure(record.workload.threads) if engine is missing[0] else []
                record.runs += _runs(record, processes, engine, number, limits)
                save()
            if number == 1:
                for name in record.much_worse(whats, _NOT_RUN_AGAIN):
                    record.left_out.setdefault(name, f"below {_NOT_RUN_AGAIN} of the best setting in round 1")
                    processes.end(name)
                save()
    return True


class _Processes:
    """The processes that wait for their next turn."""

    def __init__(self, model: Path, workload: Workload) -> None:
        self._model = model
        self._workload = workload
        self._standing: dict[str, Process] = {}

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for name in list(self._standing):
            self.end(name)

    def measure(self, engine: Engine) -> dict[str, Values]:
        """Measure once, in the engine's process if it has one, else in a fresh one."""
        if engine.name in self._standing:
            self._standing[engine.name].measure_again()
        else:
            self._standing[engine.name] = engine.start(self._model, self._workload)
        try:
            values = self._standing[engine.name].result()
        except EngineError:
            self.end(engine.name)
            raise
        if not engine.stands:
            self.end(engine.name)
        return values

    def end(self, name: str) -> None:
        """End a process, if it exists."""
        if name in self._standing:
            self._standing.pop(name).close()


def warm_page_cache(model: Path) -> None:
    """Read the file once."""
    with model.open("rb") as file:
        while file.read(1 << 24):
            pass


def _is_missing(record: Record, engine: Engine, number: int) -> bool:
    ran = any(run.engine == engine.name and run.round == number for run in record.runs)
    return not ran and engine.name not in record.left_out


def _expected_seconds(record: Record, engine: Engine) -> float:
    """Return the longest time of a run of this engine, or of all engines before its first run."""
    own = [run.seconds for run in record.runs if run.engine == engine.name]
    return max(own or [run.seconds for run in record.runs], default=0.0)


def _runs(
    record: Record, processes: _Processes, engine: Engine, number: int, limits: list[Limits]
) -> Iterator[Run]:
    started = time.monotonic()
    try:
        measured = processes.measure(engine)
    except EngineError as error:
        if engine.name == CHASKI:
            raise
        record.left_out[engine.name] = "failed"
        print(f"left out: {error}", file=sys.stderr)
        return
    seconds = round(time.monotonic() - started, 1)
    record.date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    for name, values in measured.items():
        yield Run(number, name, seconds, values, limits if name == engine.name else [])
        rates = "".join(f"{values.get(what, 0):8.1f}" for what in ("prefill", "decode"))
        print(f"round {number}:{rates}  {name} ({seconds:.0f} s)", file=sys.stderr, flush=True)
