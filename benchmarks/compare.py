"""Compare chaski with llama.cpp on one machine in turns, and print tables.

    python -m benchmarks.compare --model llama-3.2-1b --type Q4_K_M Q8_0 --llama-python other-venv/bin/python

The speed of a shared machine drifts by tens of percent within minutes. So the engines take turns, ratios are
taken within each round, and the tables show medians over the rounds. The best setting of llama.cpp counts,
separately for prefill and decode. A setting that crashes, or is much slower than the best one in the first
round, is reported and dropped.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import chaski as package
from benchmarks import make_models
from benchmarks.engines import (
    CHASKI,
    DEFAULT_KV,
    Engine,
    EngineError,
    Workload,
    chaski,
    llama_cpp_settings,
)
from benchmarks.machine import this_machine
from benchmarks.record import Record
from benchmarks.turns import Deadline, run_in_turns

__all__: list[str] = []

_WHATS = ("prefill", "decode")


def _table(record: Record) -> str:
    prefill = f"prefill {record.workload.prompt}"
    lines = [
        f"### {record.model} ({record.file_bytes / 1e9:.2f} GB)",
        "",
        f"| engine | {prefill}, tok/s | decode, tok/s | first logits, s | peak memory, GB |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in record.engines():
        value = {what: record.median(name, what) for what in (*_WHATS, "first_logits", "peak_memory")}
        lines.append(
            f"| {name} | {value['prefill']:.1f} | {value['decode']:.1f} "
            f"| {value['first_logits']:.2f} | {value['peak_memory'] / 1e9:.2f} |"
        )
    return "\n".join([*lines, "", *_summary(record)])


def _summary(record: Record) -> list[str]:
    limits = record.machine_limits()
    if limits is None:
        return []
    bandwidth = limits.read_bandwidth
    at_most = bandwidth / record.file_bytes
    lines = [f"Read bandwidth {bandwidth / 1e9:.1f} GB/s: at most {at_most:.1f} tok/s in decode."]
    for what in _WHATS:
        peer = record.best_peer(what)
        if peer is not None and CHASKI in record.engines():
            lines.append(
                f"{what.capitalize()}: **{record.ratio(what, peer):.2f}** times the best peer ({peer})."
            )
    return lines


def _models(arguments: argparse.Namespace) -> list[Path]:
    """Return the named file, or the files of the named shape; make missing ones."""
    if arguments.model in make_models.SHAPES:
        return [make_models.make(arguments.model, kind, arguments.files) for kind in arguments.type]
    path = Path(arguments.model)
    if not path.is_file():
        raise SystemExit(f"{path} is neither a file nor a shape ({', '.join(make_models.SHAPES)})")
    return [path]


def _engines(arguments: argparse.Namespace) -> list[Engine]:
    engines = []
    if arguments.only != "llama.cpp":
        engines.append(chaski(arguments.kv_type))
    if arguments.only != "chaski":
        settings = llama_cpp_settings(
            arguments.llama_python, arguments.llama_lib, arguments.batch, arguments.kv_type
        )
        engines += [engine for engine in settings if arguments.setting in engine.name]
    return engines


def _compare(model: Path, workload: Workload, arguments: argparse.Namespace) -> Record:
    record = Record(
        model.stem,
        model.stem,
        model.stat().st_size,
        workload,
        arguments.kv_type,
        this_machine(workload.threads),
        package.__version__,
        None,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    )

    def save() -> None:
        if arguments.json:
            record.write(arguments.json / f"{record.name}.json")

    engines = _engines(arguments)
    run_in_turns(record, model, engines, arguments.rounds, _WHATS, Deadline.in_minutes(None), save)
    return record


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare chaski with llama.cpp, in turns.")
    parser.add_argument("--model", default="llama-3.2-1b", help="a GGUF file, or a shape of make_models.py")
    parser.add_argument("--type", choices=make_models.TYPES, nargs="+", default=["Q4_K_M"])
    parser.add_argument("--files", type=Path, default=make_models.DEFAULT_DIRECTORY, help="where shapes are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["chaski", "llama.cpp"])
    parser.add_argument("--setting", default="", help="only settings of llama.cpp with this in their name")
    parser.add_argument("--kv-type", default=DEFAULT_KV, choices=[DEFAULT_KV, "f32", "f16", "q8_0", "q4_0"])
    parser.add_argument("--llama-python", default=sys.executable, help="an interpreter with llama-cpp-python")
    parser.add_argument("--llama-lib", type=Path, nargs="*", default=[], help="folders of llama.cpp builds")
    parser.add_argument("--json", type=Path, help="a folder for every single result")
    for name, value in asdict(Workload()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    """Compare on every requested file."""
    arguments = _arguments()
    workload = Workload(**{name: getattr(arguments, name) for name in asdict(Workload())})
    if arguments.json:
        arguments.json.mkdir(parents=True, exist_ok=True)
    for model in _models(arguments):
        try:
            record = _compare(model, workload, arguments)
        except EngineError as error:
            raise SystemExit(str(error)) from error
        print(_table(record), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
