"""Runs targets for a given time, and prints executions, coverage and findings; or repeats one input.

    python -m fuzz --seconds 600 [NAME ...]
    python -m fuzz NAME --input FILE

Each target runs in a process of its own. With Atheris (`pip install atheris`) inputs are led to new branches,
and those that reach some are kept in build/fuzz/kept. Without it, inputs are changes of the corpus.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

from msgspec import convert, to_builtins

from fuzz import running
from fuzz.running import Report
from fuzz.target import Finding, Target, outcome
from fuzz.targets import NAMES, target_of

_OUTPUT = Path("build/fuzz")
# Seconds after which a target that does not end is killed.
_PATIENCE = 120
# What libFuzzer writes.
_COVERED = re.compile(r"cov: (\d+)")
_EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=int, default=60, help="time of all targets together")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the changes without Atheris; random by default"
    )
    parser.add_argument("--input", type=Path, help="repeat this input of the target")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.input is not None:
        return _repeat(target_of(parsed.names[0]), parsed.input)
    if parsed.child is not None:
        _run_here(parsed.names[0], parsed.seconds, parsed.seed, parsed.child)
        return 0
    chosen = parsed.names or NAMES
    seed = int.from_bytes(os.urandom(4)) if parsed.seed is None else parsed.seed
    way = "Atheris" if running.has_atheris() else f"changes of the corpus, seed {seed}"
    print(f"{way}; findings go to {_OUTPUT}")
    return min(1, sum(_run(name, max(1, parsed.seconds // len(chosen)), seed) for name in chosen))


def _run(name: str, seconds: int, seed: int) -> int:
    """Run a target in a process, print a line, and return its number of findings."""
    place = _OUTPUT / f"report-{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "fuzz",
        name,
        "--seconds",
        str(seconds),
        "--seed",
        str(seed),
        "--child",
        str(place),
    ]
    with open(_OUTPUT / f"{name}.log", "w+") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            child.wait(seconds + _PATIENCE)
            ended = f"exit status {child.returncode}"
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            ended = "killed, as it did not end"
        log.seek(0)
        said = log.read()
    if not place.exists():
        print(f"{name:16} no report: {ended}; see {log.name}", flush=True)
        return 1
    report = convert(json.loads(place.read_text()), Report)
    report.executions = max(report.executions, *map(int, _EXECUTED.findall(said)), 0)
    covered = _COVERED.findall(said)
    _print(name, report, covered[-1] if covered else None, ended if child.returncode else "")
    return len(report.findings) + (child.returncode != 0)


def _print(name: str, report: Report, covered: str | None, ended: str) -> None:
    rate = report.executions / max(report.seconds, 1e-9)
    print(
        f"{name:16} {report.executions:9,} executions, {rate:7.0f}/s, {report.accepted:9,} accepted, "
        f"slowest {report.slowest:5.2f} s, {covered or 'unknown'} branches, {len(report.findings)} findings",
        ended,
        flush=True,
    )
    for place, (trace, path) in report.findings.items():
        print(
            f"  {place}\n    {trace.strip().splitlines()[-1][:200]}",
            f"\n    python -m fuzz {name} --input {path}",
            flush=True,
        )


def _run_here(name: str, seconds: int, seed: int, report: Path) -> None:
    logging.disable(logging.WARNING)
    running.limit_memory()
    if running.has_atheris():
        target = running.instrumented(lambda: target_of(name))
        running.run_atheris(target, seconds, _OUTPUT / "kept" / name, _OUTPUT, report)
    else:
        found = running.run_changes(target_of(name), 1 << 62, seed, seconds, _OUTPUT)
        report.write_text(json.dumps(to_builtins(found)))


def _repeat(target: Target, path: Path) -> int:
    print(f"{target.name}: {target.property}")
    found = outcome(target, path.read_bytes())
    if isinstance(found, Finding):
        print(found.trace)
        return 1
    print("accepted" if found else "refused")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
