"""The command line of simulated worlds."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chaski.env import variables
from tests.simulation.asks import Oracle
from tests.simulation.disk import DISK
from tests.simulation.machine import use_simulated_machine
from tests.simulation.processes import use_simulated_processes
from tests.simulation.registry import use_simulated_registry
from tests.simulation.scheduler import SCHEDULER
from tests.simulation.weights import MEMORY_FOLDER, model_files
from tests.simulation.world import CONTEXT, World, WorldError

__all__ = ["main"]

_STEPS = 8
_MOST_FAILURES = 10
_WORLDS_TO_COLLECT = 8


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:200", metavar="FIRST:END")
    parser.add_argument("--seed", type=int, help="run one seed, and show the failure with its log")
    parser.add_argument("--steps", type=int, default=_STEPS, help="number of actions in each world")
    parser.add_argument("--digests", action="store_true", help="print the checksum of each trace")
    parser.add_argument("--wrong", action="store_true", help="expect wrong answers, to test this command")
    parsed = parser.parse_args(arguments)
    first, _, end = parsed.seeds.partition(":")
    seeds = range(int(first), int(end)) if parsed.seed is None else range(parsed.seed, parsed.seed + 1)
    logging.disable(logging.CRITICAL if parsed.seed is None else logging.NOTSET)
    _prepare()
    with tempfile.TemporaryDirectory(prefix="chaski-simulation-", dir=MEMORY_FOLDER) as folder:
        runs = _Runs(Path(folder) / "store", Oracle(model_files(), CONTEXT, parsed.wrong), parsed.steps)
        for seed in seeds:
            runs.run(seed, is_shown=parsed.seed is not None)
            if parsed.digests:
                print(f"{seed} {SCHEDULER.digest:08x} {SCHEDULER.num_turns}")
            if runs.failed >= _MOST_FAILURES:
                break
    print(runs)
    return min(runs.failed, 1)


def _prepare() -> None:
    """Leave out the user's settings, and let chaski see a simulated machine."""
    for variable in variables():
        os.environ.pop(variable.name, None)
    os.environ |= {"CHASKI_THREADS": "1", "CHASKI_ANSWERS": "0", "CHASKI_BACKEND": "cpu"}
    sys.unraisablehook = lambda failure: None  # coroutines of killed loops
    DISK.install()
    use_simulated_processes()
    use_simulated_machine()
    use_simulated_registry()


class _Runs:
    """Runs worlds one after the other, and counts."""

    def __init__(self, folder: Path, oracle: Oracle, steps: int) -> None:
        self._folder = folder
        self._oracle = oracle
        self._steps = steps
        self.seeds = self.turns = self.answers = self.checked = self.faults = self.pulls = self.failed = 0
        with suppress(WorldError):
            World(0, folder, oracle).rehearse()
        SCHEDULER.kill_all()
        DISK.leave()
        gc.disable()
        gc.collect()
        gc.freeze()

    def run(self, seed: int, is_shown: bool) -> None:
        """Run a world; print the line that replays a failure."""
        world = World(seed, self._folder, self._oracle)
        try:
            world.run(self._steps)
        except (Exception, SystemExit) as error:
            self.failed += 1
            replay = f"python -m tests.simulation --seed {seed} --steps {self._steps}"
            print(f"{replay}: {type(error).__name__}: {error}", flush=True)
            if is_shown:
                traceback.print_exc()
        SCHEDULER.kill_all()
        DISK.leave()
        self.seeds += 1
        self.turns += SCHEDULER.num_turns
        self.answers += world.answers
        self.checked += world.checked
        self.faults += world.faults
        self.pulls += world.pulls
        if self.seeds % _WORLDS_TO_COLLECT == 0:
            gc.collect()

    def __str__(self) -> str:
        counts = f"{self.turns} turns, {self.answers} requests, {self.faults} faults"
        compared = f"{self.checked} answers compared, {self.pulls} pulls complete"
        return f"{self.seeds} seeds, {counts}, {compared}, {self.failed} failed"
