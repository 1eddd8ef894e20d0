"""Measure chaski like `chaski bench --json`, once and then for every line on standard input."""

from __future__ import annotations

import argparse
import itertools
import json
import sys

from msgspec.structs import asdict

import chaski
from chaski.cli.bench import Workload, measure, seconds_since_process_start

__all__: list[str] = []


def main() -> None:
    """Load once, measure, and repeat until standard input ends."""
    arguments = _arguments()
    workload = Workload(*(getattr(arguments, name) for name in Workload.__struct_fields__))
    with chaski.load(
        arguments.model, threads=arguments.threads, context=workload.context, parallel=workload.batch
    ) as model:
        model.logits([0])
        first_logits = seconds_since_process_start()
        for turn in itertools.count():
            seeds = range(turn * arguments.repeat, (turn + 1) * arguments.repeat)
            print(json.dumps(asdict(measure(model, workload, seeds, first_logits))), flush=True)
            if not sys.stdin.readline():
                break


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    for name in ("prompt", "generate", "depth", "batch", "threads", "repeat"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
