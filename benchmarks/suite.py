"""Measure every row of docs/performance.md, chaski and llama.cpp in turns: `python -m benchmarks.suite`.

    python -m benchmarks.suite --llama-python PEER/bin/python                  all rows
    python -m benchmarks.suite --llama-python PEER/bin/python --minutes 9      a part; the next call continues
    python -m benchmarks.suite --only type-q8_0 start --rounds 5 --fresh       some rows, from the beginning

Each row has a JSON file that grows with every run, so an interruption loses nothing; each processor and
instruction set has a folder of these files. `python -m benchmarks.report` makes the page from all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import chaski as package
from benchmarks import make_models
from benchmarks.engines import (
    Engine,
    EngineError,
    chaski,
    fresh_chaski,
    heads,
    ik_llama_cpp_settings,
    llama_cpp_settings,
    llama_cpp_version,
    speculation,
)
from benchmarks.machine import this_machine
from benchmarks.record import Record
from benchmarks.rows import ROWS, Row, costs
from benchmarks.turns import Deadline, run_in_turns

__all__ = ["RESULTS"]

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure the missing runs of the requested rows."""
    arguments = _arguments()
    if arguments.list:
        print("\n".join(f"{row.name:29}{row.rounds} rounds  {row.title}" for row in ROWS.values()))
        return
    deadline = Deadline.in_minutes(arguments.minutes)
    peer = _peer(arguments)
    for name in arguments.only or ROWS:
        started = time.monotonic()
        try:
            is_complete = _run_row(ROWS[name], arguments, peer, deadline)
        except EngineError as error:
            raise SystemExit(f"{name}: {error}") from error
        minutes = (time.monotonic() - started) / 60
        print(f"{name}: {'complete' if is_complete else 'goes on'}, {minutes:.1f} min", flush=True)
        if not is_complete:
            break


def _run_row(row: Row, arguments: argparse.Namespace, peer: str | None, deadline: Deadline) -> bool:
    model = make_models.make(row.shape, row.type, arguments.files)
    record = _new_record(row, model, peer)
    path = arguments.results / record.machine.folder / f"{row.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if arguments.fresh:
        path.unlink(missing_ok=True)
    if path.exists():
        record = _continued(Record.read(path), record, path)
    engines = _engines(row, arguments, peer)
    rounds = arguments.rounds or row.rounds
    return run_in_turns(record, model, engines, rounds, row.shown, deadline, lambda: record.write(path))


def _engines(row: Row, arguments: argparse.Namespace, peer: str | None) -> list[Engine]:
    if row.overlap is not None:
        return [speculation(row.overlap)]
    if row.chance is not None:
        return [heads(row.chance)]
    ours = [chaski(row.kv_type) if row.keep else fresh_chaski()]
    if peer is None:
        return ours
    settings = llama_cpp_settings(
        arguments.llama_python, arguments.llama_lib, row.workload.batch, row.kv_type
    )
    standing = [replace(engine, stands=row.keep) for engine in settings]
    if arguments.ik_bench is not None and row.has_ik_llama_cpp:
        standing += ik_llama_cpp_settings(arguments.ik_bench)
    return ours + [engine for engine in standing if arguments.setting in engine.name]


def _peer(arguments: argparse.Namespace) -> str | None:
    if arguments.llama_python is None:
        print("no --llama-python: chaski runs alone", file=sys.stderr)
        return None
    try:
        return llama_cpp_version(arguments.llama_python)
    except EngineError as error:
        raise SystemExit(str(error)) from error


def _new_record(row: Row, model: Path, peer: str | None) -> Record:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Record(
        row.name,
        model.stem,
        model.stat().st_size,
        row.workload,
        row.kv_type,
        this_machine(row.workload.threads),
        package.__version__,
        peer,
        now,
        costs(row),
    )


def _continued(before: Record, now: Record, path: Path) -> Record:
    """Return the record of an earlier call, if it measures the same."""
    for what in ("workload", "kv_type", "model", "file_bytes", "machine", "chaski", "peer"):
        old, new = getattr(before, what), getattr(now, what)
        if old != new:
            raise SystemExit(f"{path.name}: {what} was {old} and is {new} now; --fresh begins anew")
    return before


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=Path, default=make_models.DEFAULT_DIRECTORY, help="where models are")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the folders of records are")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, help="some rows")
    parser.add_argument("--rounds", type=int, help="instead of each row's own number")
    parser.add_argument("--minutes", type=float, help="start only runs that should end within this time")
    parser.add_argument("--fresh", action="store_true", help="discard earlier measurements of these rows")
    parser.add_argument("--llama-python", help="an interpreter with llama-cpp-python; without it, no peer")
    parser.add_argument("--llama-lib", type=Path, nargs="*", default=[], help="folders of llama.cpp builds")
    parser.add_argument(
        "--ik-bench", type=Path, help="the program `llama-bench` of ik_llama.cpp, a second peer"
    )
    parser.add_argument("--setting", default="", help="only settings of peers with this in their name")
    parser.add_argument("--list", action="store_true", help="show the rows and exit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
