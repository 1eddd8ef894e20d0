"""Measure `chaski run` as a process, from its start to the first character of the answer and to its end.

    python -m benchmarks.start FILE [--rounds 5] [--cold] [--python OTHER/bin/python ...]
        [--llama-python PEER/bin/python]

The peer is a program that answers the same prompt with llama-cpp-python's own class, `Llama`, with default
settings except for context and threads. The processes take turns, ours first; the table shows medians. With
`--cold`, the file is dropped from the page cache before each start, and the table shows the time to read it
once from disk. `--python` names other interpreters with chaski, such as an older version.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

__all__ = ["Start", "measure_start"]

_PROMPT, _CONTEXT = "hi", 4096
_READ_BYTES = 8 << 20

_PEER = """
import os, sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=int(sys.argv[3]), n_threads=len(os.sched_getaffinity(0)), verbose=False)
for piece in model.create_completion(sys.argv[2], max_tokens=1, temperature=0, stream=True):
    print(piece["choices"][0]["text"], end="", flush=True)
print()
"""


class Start(NamedTuple):
    """Seconds to the first byte on standard output and to the end, and processor seconds."""

    first: float
    end: float
    processor: float


def main() -> None:
    """Measure in turns, and print a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cold", action="store_true", help="drop the file from the page cache before each start"
    )
    parser.add_argument("--python", nargs="*", default=[], help="interpreters, or folders with a chaski")
    parser.add_argument("--llama-python", help="an interpreter with llama-cpp-python")
    arguments = parser.parse_args()
    programs = _programs(arguments.file, arguments.python, arguments.llama_python)
    found: dict[str, list[Start]] = {name: [] for name in programs}
    disk: list[float] = []
    prepare = _forget if arguments.cold else _read
    for _ in range(arguments.rounds):
        for name, measured in programs.items():
            prepare(arguments.file)
            found[name].append(measured())
        if arguments.cold:
            _forget(arguments.file)
            disk.append(_read(arguments.file))
    print(f"{'':32}{'first character':>16}{'end':>9}{'processors':>12}")
    for name, starts in found.items():
        first, end, processor = (median(times) for times in zip(*starts, strict=True))
        print(f"{name:32}{first:14.2f} s{end:7.2f} s{processor:10.2f} s")
    if disk:
        print(f"{'the disk, all of the file':32}{median(disk):14.2f} s")


def _programs(file: Path, others: Sequence[str], peer: str | None) -> dict[str, Callable[[], Start]]:
    def chaski(python: str, folder: str | None) -> Callable[[], Start]:
        options = [_PROMPT, "--num-predict", "1", "--temperature", "0", "--context", str(_CONTEXT)]
        return lambda: measure_start([python, "-m", "chaski", "run", str(file), *options], folder)

    programs = {"chaski run": chaski(sys.executable, None)}
    for other in others:
        is_folder = Path(other).is_dir()
        programs[other] = chaski(sys.executable if is_folder else other, other if is_folder else None)
    if peer is not None:
        command = [peer, "-c", _PEER, str(file), _PROMPT, str(_CONTEXT)]
        programs["llama-cpp-python"] = lambda: measure_start(command)
    return programs


def measure_start(command: Sequence[str], folder: str | None = None) -> Start:
    """Run a program to its end. Raises ChildProcessError if it fails or prints nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = perf_counter()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        is_answer = bool(process.stdout.read(1))
        first = perf_counter() - started
        process.stdout.read()
    end = perf_counter() - started
    if process.returncode or not is_answer:
        raise ChildProcessError(f"{command[0]} ended with {process.returncode}, and no answer")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Start(first, end, processor)


def _forget(file: Path) -> None:
    """Let the system drop the file's pages from memory."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(file: Path) -> float:
    """Return the seconds to read a whole file."""
    started = perf_counter()
    with file.open("rb", buffering=0) as opened:
        buffer = bytearray(_READ_BYTES)
        while opened.readinto(buffer):
            pass
    return perf_counter() - started


if __name__ == "__main__":
    main()
