"""Compare chaski with llama.cpp on models larger than memory: `python -m benchmarks.larger_than_memory`.

    python -m benchmarks.larger_than_memory --llama-python other-venv/bin/python
    python -m benchmarks.larger_than_memory --only "uniform, decode" --rounds 3

A mixture of experts is 1.5 times as large as the memory of its control group, and a dense model 1.3 times.
The engines take turns, each in a fresh process and group, after the file has left the page cache.
`--llama-python` is an interpreter with xllamacpp. The best repeat of a turn counts, and the median of turns.
"Disk" is the rate at which the engine read during that repeat, and the share of what a bare reader reached
just before the turn: four threads that read the same file past the page cache, in pieces of 2 MiB that are
huge pages in memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks import make_experts, make_models
from benchmarks.control_group import drop_cached, limited
from benchmarks.engines import CHASKI, Engine, EngineError, Workload

__all__: list[str] = []

_WORKER = Path(__file__).parent / "limited_worker.py"
_LLAMA_CPP = "llama.cpp, mapped"
_MIXTURE, _DENSE = 1.5, 1.3
"""Sizes of files, as multiples of the memory."""
_READERS, _PIECE, _READ_SECONDS = 4, 2 << 20, 2.0


class _Row(NamedTuple):
    """A measured workload: the file, its size as a multiple of the memory, and the rate that counts."""

    name: str
    file: str
    size: float
    what: str
    workload: Workload


class _Turn(NamedTuple):
    rate: float
    read_bytes: int
    disk: float
    """Bytes per second."""
    bare: float


def _rows() -> Iterator[_Row]:
    decode, prefill = Workload(32, 48), Workload(2048, 1, repeat=1)
    for name, file in (("uniform", "qwen3-30b-a3b"), ("skewed", "qwen3-30b-a3b-skewed")):
        yield _Row(f"mixture, {name}, decode", file, _MIXTURE, "decode", decode)
        yield _Row(f"mixture, {name}, prefill 2,048", file, _MIXTURE, "prefill", prefill)
    for batch in (1, 8):
        work = Workload(8, 13, batch=batch, repeat=1)
        together = f"{batch} sequences" if batch > 1 else "1 sequence"
        yield _Row(f"dense, {together}, decode", "llama-3.2-1b", _DENSE, "decode", work)
    yield _Row("dense, prefill 2,048", "llama-3.2-1b", _DENSE, "prefill", prefill)


def _file(name: str, folder: Path) -> Path:
    """Return the file of a shape; make it if it is missing."""
    if name not in make_experts.SHAPES:
        return make_models.make(name, "Q8_0", folder)
    path = folder / f"{name}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        make_experts.make(name, unfinished)
        unfinished.rename(path)
    return path


def _bare_rate(path: Path) -> float:
    """Return the bytes per second that a reader with nothing else to do gets from a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    pieces = path.stat().st_size // _PIECE
    end = time.perf_counter() + _READ_SECONDS

    def read(first: int) -> int:
        area = np.empty(3 * _PIECE, np.uint8)  # NumPy asks for huge pages
        aligned = -area.ctypes.data % _PIECE
        room = area[aligned : aligned + _PIECE].data
        done = 0
        for index in range(first, pieces, _READERS):
            done += os.preadv(descriptor, [room], index * _PIECE)
            if time.perf_counter() > end:
                break
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as pool:
        done = sum(pool.map(read, range(_READERS)))
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return done / seconds


def _measured(engine: Engine, row: _Row, path: Path, threads: int) -> _Turn:
    """Run one turn of an engine. Raises EngineError if it crashes, as for lack of memory."""
    drop_cached(path)
    bare = _bare_rate(path)
    with limited(int(path.stat().st_size / row.size)) as group:
        workload = replace(row.workload, threads=threads)
        process = replace(engine, command=group.running(engine.command)).start(path, workload)
        try:
            answer: dict[str, Any] = process.answer()
        finally:
            process.close()
    rates: list[float] = answer[f"{row.what}_tokens_per_second"]
    best = max(range(len(rates)), key=rates.__getitem__)
    read = answer["read_bytes"][best]
    return _Turn(rates[best], read, read / answer["seconds"][best], bare)


def _engines(llama_python: str | None) -> list[Engine]:
    engines = [Engine(CHASKI, (sys.executable, "-m", "benchmarks.limited_worker", "chaski"))]
    if llama_python is not None:
        engines.append(Engine(_LLAMA_CPP, (llama_python, str(_WORKER), "llama.cpp")))
    return engines


def _table(row: _Row, path: Path, turns: Mapping[str, Sequence[_Turn]]) -> Iterator[str]:
    size = path.stat().st_size
    yield f"### {row.name} ({size / 1e9:.2f} GB, {size / row.size / 1e9:.2f} GB of memory)"
    yield ""
    yield "| engine | tok/s | read, GB | disk, GB/s | of a bare reader |"
    yield "|---|--:|--:|--:|--:|"
    for name, found in turns.items():
        if not found:
            yield f"| {name} | failed | | | |"
            continue
        share = median(turn.disk / turn.bare for turn in found)
        yield (
            f"| {name} | {median(turn.rate for turn in found):.2f} "
            f"| {median(turn.read_bytes for turn in found) / 1e9:.2f} "
            f"| {median(turn.disk for turn in found) / 1e9:.2f} | {share:.0%} |"
        )
    ours, theirs = turns[CHASKI], turns.get(_LLAMA_CPP, [])
    ratios = [mine.rate / other.rate for mine, other in zip(ours, theirs, strict=False)]
    if ratios:
        yield ""
        yield f"**{median(ratios):.2f}** times llama.cpp (turns: {', '.join(f'{r:.2f}' for r in ratios)})."


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--llama-python", help="an interpreter with xllamacpp")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose name contains one of these")
    parser.add_argument("--files", type=Path, default=make_models.DEFAULT_DIRECTORY, help="where files are")
    return parser.parse_args()


def main() -> None:
    """Measure every row and print its table."""
    arguments = _arguments()
    engines = _engines(arguments.llama_python)
    started = time.monotonic()
    for row in _rows():
        if not any(part in row.name for part in arguments.only):
            continue
        path = _file(row.file, arguments.files)
        turns: dict[str, list[_Turn]] = {engine.name: [] for engine in engines}
        for _ in range(arguments.rounds):
            for engine in engines:
                try:
                    turns[engine.name].append(_measured(engine, row, path, arguments.threads))
                except EngineError as error:
                    print(f"left out: {error}", file=sys.stderr)
        print("\n".join(_table(row, path, turns)), end="\n\n", flush=True)
        print(f"{row.name}: {time.monotonic() - started:.0f} s so far", file=sys.stderr)


if __name__ == "__main__":
    main()
