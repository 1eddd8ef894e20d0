"""The measurements of one workload and derived values. A record is one JSON file.

Runs are stored one by one in their order, so that a ratio compares successive runs, and an interrupted record
can continue.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import to_builtins

from benchmarks.engines import CHASKI, Values, Workload
from benchmarks.machine import Machine
from benchmarks.roofline import Costs, Limits, decode_limit, median_limits, prefill_limit

__all__ = ["LOWER_IS_BETTER", "Record", "Run"]

LOWER_IS_BETTER = {"load", "first_logits", "peak_memory"}
# Rows and engines of older records, and their present names.
_RENAMED_ROWS = {"guesses-0": "speculation-0", "guesses-60": "speculation-60"}
_RENAMED_ENGINES = {"chaski without guesses": "chaski without speculation"}


@dataclass(frozen=True, slots=True)
class Run:
    """One process of one engine."""

    round: int
    engine: str
    seconds: float
    values: Values
    limits: list[Limits] = field(default_factory=list)
    """The machine's limits with each number of threads, measured before the first run of a round."""

    @classmethod
    def of(cls, data: dict[str, Any]) -> Run:
        """Return the run from its `to_builtins` form."""
        engine = _RENAMED_ENGINES.get(data["engine"], data["engine"])
        return cls(**data | {"engine": engine, "limits": [Limits(**one) for one in data["limits"]]})


@dataclass(slots=True)
class Record:
    """All runs of one workload on one file."""

    name: str
    model: str
    file_bytes: int
    workload: Workload
    kv_type: str
    machine: Machine
    chaski: str
    peer: str | None
    date: str
    """The date of the last run, in UTC."""
    costs: Costs | None = None
    runs: list[Run] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Settings that are no longer run, with the reasons."""

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a file of `write`, with present names."""
        data = json.loads(path.read_text())
        data["name"] = _RENAMED_ROWS.get(data["name"], data["name"])
        data["workload"] = Workload(**data["workload"])
        data["machine"] = Machine(**data["machine"])
        data["costs"] = data["costs"] and Costs(**data["costs"])
        data["runs"] = [Run.of(run) for run in data["runs"]]
        return cls(**data)

    def write(self, path: Path) -> None:
        """Replace the file atomically, so that an interruption loses at most the last run."""
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(to_builtins(self), indent=1) + "\n")
        unfinished.rename(path)

    @property
    def limits(self) -> list[Limits]:
        """Return all measured limits in order."""
        return [limits for run in self.runs for limits in run.limits]

    def rounds(self) -> int:
        """Return the number of rounds in which our own engine ran."""
        return len({run.round for run in self.runs if run.engine == CHASKI})

    def engines(self) -> list[str]:
        """Return all engines that ran and were not dropped after an error, ours first."""
        return list(dict.fromkeys(run.engine for run in self.runs))

    def median(self, engine: str, what: str) -> float:
        """Return the median over the runs of an engine."""
        return float(median(run.values[what] for run in self.runs if run.engine == engine))

    def best_peer(self, what: str) -> str | None:
        """Return the other engine, or engine setting, with the best median."""
        peers = [engine for engine in self.engines() if engine != CHASKI]
        choose = min if what in LOWER_IS_BETTER else max
        return choose(peers, key=lambda name: self.median(name, what), default=None)

    def ratio(self, what: str, peer: str) -> float:
        """Return our value divided by the peer's, as the median over its runs, each with our last run."""
        ratios: list[float] = []
        ours = None
        for run in self.runs:
            if run.engine == CHASKI:
                ours = run.values[what]
            elif run.engine == peer and ours is not None:
                ratios.append(ours / run.values[what])
        return float(median(ratios))

    def machine_limits(self) -> Limits | None:
        """Return the median limits for the workload's number of threads."""
        fitting = self._fitting(self.limits)
        return median_limits(fitting) if fitting else None

    def limit(self, what: str) -> float | None:
        """Return the machine's limit for a rate of a model with known costs."""
        limits = self.machine_limits()
        return None if limits is None else self._limit(limits, what)

    def share(self, what: str) -> float | None:
        """Return the share of the machine's limit, as the median over our runs with their limits."""
        shares = [
            run.values[what] / limit
            for run in self.runs
            for limits in self._fitting(run.limits)
            if run.engine == CHASKI and (limit := self._limit(limits, what)) is not None
        ]
        return float(median(shares)) if shares else None

    def _fitting(self, limits: Sequence[Limits]) -> list[Limits]:
        return [one for one in limits if one.threads == self.workload.threads]

    def _limit(self, limits: Limits, what: str) -> float | None:
        work = self.workload
        if self.costs is not None and what == "prefill":
            return prefill_limit(limits, self.costs, work.depth + work.prompt / 2)
        if self.costs is not None and what == "decode":
            return decode_limit(limits, self.costs, work.batch, work.depth + work.prompt + work.generate / 2)
        return None

    def much_worse(self, whats: Sequence[str], than: float) -> list[str]:
        """Return the settings that reach less than this share of the best other setting in all values."""
        best = {what: self.best_peer(what) for what in whats}
        return [
            engine
            for engine in self.engines()
            if engine != CHASKI
            and all(peer and self._share(engine, peer, what) < than for what, peer in best.items())
        ]

    def _share(self, engine: str, best: str, what: str) -> float:
        share = self.median(engine, what) / self.median(best, what)
        return 1 / share if what in LOWER_IS_BETTER else share
