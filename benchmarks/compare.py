"""Compares chaski with llama.cpp on one machine, in turns, and prints tables.

    python benchmarks/compare.py --model llama-3.2-1b --type Q4_K_M Q8_0 --llama-python other-venv/bin/python

Speed of a shared machine drifts by tens of percent within minutes, so the engines take turns and the ratios
are taken within each round; medians over the rounds are shown. The best setting of llama.cpp counts, for
prefill and for decode apart. A setting that crashes is reported and left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import make_models
from engines import Engine, EngineError, Result, Workload, chaski, llama_cpp_settings, read_bandwidth

__all__: list[str] = []


@dataclass(frozen=True, slots=True)
class _Comparison:
    """All rounds on one file: for each engine its results in order, and the bandwidth of each round."""

    model: Path
    results: dict[str, list[Result]]
    bandwidth: list[float]

    def median(self, engine: str, what: str) -> float:
        return float(median(getattr(result, what) for result in self.results[engine]))

    def best_peer(self, what: str) -> str | None:
        """The setting of llama.cpp with the highest median rate."""
        peers = [name for name in self.results if name != "chaski"]
        return max(peers, key=lambda name: self.median(name, what), default=None)

    def ratio(self, what: str, peer: str) -> float:
        """Median over the rounds of chaski's rate by the peer's in the same round."""
        pairs = zip(self.results["chaski"], self.results[peer], strict=True)
        return float(median(getattr(ours, what) / getattr(theirs, what) for ours, theirs in pairs))


def _compare(model: Path, engines: Sequence[Engine], workload: Workload, rounds: int) -> _Comparison:
    _warm_page_cache(model)
    results: dict[str, list[Result]] = {engine.name: [] for engine in engines}
    bandwidth: list[float] = []
    for number in range(rounds):
        bandwidth.append(read_bandwidth(workload.threads))
        for engine in engines:
            if engine.name not in results:
                continue
            try:
                result = engine.measure(model, workload)
            except EngineError as error:
                print(f"left out: {error}", file=sys.stderr)
                del results[engine.name]
                continue
            results[engine.name].append(result)
            rates = f"{result.prefill:7.1f} {result.decode:6.1f}"
            print(f"round {number + 1}: {rates}  {engine.name}", file=sys.stderr)
    return _Comparison(model, results, bandwidth)


def _warm_page_cache(model: Path) -> None:
    with model.open("rb") as file:
        while file.read(1 << 24):
            pass


def _table(comparison: _Comparison, workload: Workload) -> str:
    size = comparison.model.stat().st_size
    prefill = f"prefill {workload.prompt}"
    lines = [
        f"### {comparison.model.stem} ({size / 1e9:.2f} GB)",
        "",
        f"| engine | {prefill}, tok/s | decode, tok/s | first logits, s | peak memory, GB |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in comparison.results:
        value = {what: comparison.median(name, what) for what in Result.__slots__}
        lines.append(
            f"| {name} | {value['prefill']:.1f} | {value['decode']:.1f} "
            f"| {value['first_logits_seconds']:.2f} | {value['peak_rss_bytes'] / 1e9:.2f} |"
        )
    lines += ["", *_summary(comparison, size)]
    return "\n".join(lines)


def _summary(comparison: _Comparison, size: int) -> list[str]:
    bandwidth = median(comparison.bandwidth)
    lines = [f"Read bandwidth {bandwidth / 1e9:.1f} GB/s: at most {bandwidth / size:.1f} tok/s in decode."]
    for what in ("prefill", "decode"):
        peer = comparison.best_peer(what)
        if peer is not None and "chaski" in comparison.results:
            ratio = comparison.ratio(what, peer)
            lines.append(f"{what.capitalize()}: **{ratio:.2f}** times the best peer ({peer}).")
    return lines


def _as_json(comparison: _Comparison) -> dict[str, Any]:
    return {
        "model": comparison.model.stem,
        "file_bytes": comparison.model.stat().st_size,
        "read_bandwidth": comparison.bandwidth,
        "results": {name: [asdict(result) for result in runs] for name, runs in comparison.results.items()},
    }


def _models(arguments: argparse.Namespace) -> list[Path]:
    """The file that was named, or the files of the shape that was named, made when they are missing."""
    if arguments.model in make_models.SHAPES:
        return [make_models.make(arguments.model, kind, arguments.files) for kind in arguments.type]
    path = Path(arguments.model)
    if not path.is_file():
        raise SystemExit(f"{path} is neither a file nor a shape ({', '.join(make_models.SHAPES)})")
    return [path]


def _engines(arguments: argparse.Namespace) -> list[Engine]:
    engines = []
    if arguments.only != "llama.cpp":
        engines.append(chaski(arguments.chaski, arguments.kv_type))
    if arguments.only != "chaski":
        settings = llama_cpp_settings(
            arguments.llama_python, arguments.llama_lib, arguments.batch, arguments.kv_type
        )
        engines += [engine for engine in settings if arguments.setting in engine.name]
    return engines


def _arguments() -> argparse.Namespace:
    here = Path(sys.executable)
    parser = argparse.ArgumentParser(description="Compare chaski with llama.cpp, in turns.")
    parser.add_argument("--model", default="llama-3.2-1b", help="a GGUF file, or a shape of make_models.py")
    parser.add_argument("--type", choices=make_models.TYPES, nargs="+", default=["Q4_K_M"])
    parser.add_argument("--files", type=Path, default=make_models.DEFAULT_DIRECTORY, help="where shapes are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["chaski", "llama.cpp"])
    parser.add_argument("--setting", default="", help="only settings of llama.cpp with this in their name")
    parser.add_argument("--kv-type", default="f16", choices=["f32", "f16", "q8_0", "q4_0"])
    parser.add_argument("--chaski", default=str(here.with_name("chaski")), help="the chaski program")
    parser.add_argument("--llama-python", default=str(here), help="an interpreter with llama-cpp-python")
    parser.add_argument("--llama-lib", type=Path, nargs="*", default=[], help="folders of llama.cpp builds")
    parser.add_argument("--json", type=Path, help="write every single result here")
    for name, value in asdict(Workload()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    """Compare on every file that was asked for."""
    arguments = _arguments()
    workload = Workload(**{name: getattr(arguments, name) for name in asdict(Workload())})
    engines = _engines(arguments)
    comparisons = []
    for model in _models(arguments):
        comparison = _compare(model, engines, workload, arguments.rounds)
        print(_table(comparison, workload), end="\n\n", flush=True)
        comparisons.append(_as_json(comparison))
    if arguments.json:
        record = {"workload": asdict(workload), "comparisons": comparisons}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
