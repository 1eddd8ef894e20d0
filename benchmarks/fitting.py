"""Compare predictions of `chaski fit` with what a model then takes: `python -m benchmarks.fitting MODEL ...`.

    python -m benchmarks.fitting small.gguf larger.gguf --rounds 3
    python -m benchmarks.fitting mixture.gguf --memory 1180

In each round `chaski fit` predicts in one process, and another one loads the model, reads a prompt of 512
tokens and generates 64. Rates that `chaski fit` remembers are forgotten before each round. Medians count.
The measured memory is the private memory that the process has more than before loading.
`--memory` limits it to so many MiB by a control group (as root).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.control_group import drop_cached, limited

__all__: list[str] = []

_PROMPT, _GENERATE = 512, 64
_CONTEXT = 768
"""What the worker loads for so many tokens."""


class _Round(NamedTuple):
    """A quantity of a round."""

    predicted: float
    measured: float


def _object(command: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measured(model: Path, threads: int, memory: int | None) -> dict[str, _Round]:
    fit = [sys.executable, "-m", "chaski", "fit", str(model), "--context", str(_CONTEXT), "--json"]
    worker = [sys.executable, "-m", "benchmarks.limited_worker", "chaski", str(model), "--repeat", "2"]
    worker += ["--prompt", str(_PROMPT), "--generate", str(_GENERATE), "--threads", str(threads)]
    with ExitStack() as stack:
        cache = stack.enter_context(TemporaryDirectory())
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "CHASKI_THREADS": str(threads)}
        if memory is not None:
            drop_cached(model)
            group = stack.enter_context(limited(memory << 20))
            fit, worker = list(group.running(fit)), list(group.running(worker))
        plan = _object(fit, environment)
        done = _object(worker, environment)
    (held,) = plan["devices"].values()
    return {
        "prompt, tok/s": _Round(plan["prefill_tokens_per_second"], max(done["prefill_tokens_per_second"])),
        "answer, tok/s": _Round(plan["decode_tokens_per_second"], max(done["decode_tokens_per_second"])),
        "memory, MB": _Round(
            (held["weights"] + held["caches"] + held["working"]) / 1e6, done["memory_bytes"] / 1e6
        ),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, metavar="MIB")
    return parser.parse_args()


def main() -> None:
    """Measure every model and print a row for each quantity."""
    arguments = _arguments()
    print("| model | | predicted | measured | predicted / measured |")
    print("|---|---|--:|--:|--:|", flush=True)
    for model in arguments.models:
        rounds = [_measured(model, arguments.threads, arguments.memory) for _ in range(arguments.rounds)]
        for what in rounds[0]:
            predicted = median(each[what].predicted for each in rounds)
            measured = median(each[what].measured for each in rounds)
            ratio = predicted / measured
            print(f"| {model.stem} | {what} | {predicted:,.1f} | {measured:,.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
