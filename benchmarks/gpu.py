"""Measure models on an NVIDIA GPU, compared with the limits of its memory and tensor cores.

    python -m benchmarks.gpu                   Llama 3.1 8B and 3.2 1B, random weights, Q4_K_M, in 8 minutes
    python -m benchmarks.gpu --minutes 3       the most important first; names skipped ones
    python -m benchmarks.gpu --only experts    a mixture with experts on the processor, the GPU, and both
    python -m benchmarks.gpu --device cpu      the same models on 1 to 16 threads of the processor
    python -m benchmarks.gpu --quick --shape llama-tiny --device cpu    a dry run

Needs only the extra `cuda`. If torch is installed, it is measured, too; if matplotlib is installed, pictures
are drawn. Each model is measured in a separate process, so a failure does not affect the others. Results are
written immediately, to a folder for the device in `benchmarks/devices`.

The bytes of weights, keys and values that a step reads, times the steps per second, are compared with a copy
inside the device, which counts bytes read and written. Multiply-adds of a prompt are compared with those of
torch's product of two bf16 matrices. On the processor, the limits are the read bandwidth and the int8
multiply-adds of its threads. Kernels of a step are timed alone, many times in a row, so weights that fit the
device's cache are faster than in a model.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_results import SINGLE, Results
from benchmarks.make_models import DEFAULT_DIRECTORY, TYPES
from benchmarks.shapes.llama import SHAPES as LLAMAS
from chaski.ml.machine import usable_processors

__all__ = ["main"]

_DEVICES = Path(__file__).parent / "devices"
_MOST_THREADS = 16

Works = Mapping[str, tuple[int, int, int, int]]
"""By name: numbers of prompt tokens, tokens to decode, tokens before the prompt, and sequences."""

# The kernels of the last work of each process are timed.
_WORKS: Sequence[Works] = (
    {"prompt of 2,048": (2048, 32, 0, 1), SINGLE: (512, 128, 0, 1)},
    {"64 sequences": (128, 64, 0, 64)},
    {"behind 32,768": (128, 32, 32768, 1)},
    {"256 sequences": (128, 32, 0, 256)},
)
_ON_CPU: Works = {SINGLE: (128, 16, 0, 1)}
_TOKENS_OF_TORCH = (1, 64, 256, 2048)

_EXPERTS = "experts"
"""The work of mixtures, which is measured only if it is named."""

Task = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table; return 1 after a failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="time limit (8)")
    parser.add_argument("--device", default="cuda", metavar="BACKEND", help="cuda (default), or cpu")
    parser.add_argument("--shape", choices=LLAMAS, nargs="+", default=["llama-3.1-8b", "llama-3.2-1b"])
    parser.add_argument("--type", choices=TYPES, default="Q4_K_M")
    parser.add_argument(
        "--threads", type=int, nargs="+", metavar="N", help="of --device cpu (1, 2, 4 ... 16)"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--kernels", type=int, default=5, metavar="N", help="number of slowest kernels of a step (5)"
    )
    parser.add_argument("--only", nargs="+", metavar="WORK", help="such as '64 sequences'; all without it")
    parser.add_argument("--quick", action="store_true", help="short prompts and answers: a dry run")
    parser.add_argument("--files", type=Path, default=DEFAULT_DIRECTORY, help="where models are made")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the results")
    parsed = parser.parse_args(arguments)
    began = time.monotonic()
    seconds = 60 * parsed.minutes
    device = list(_told({"name": "device", **_device(parsed)}, seconds))
    if "failed" in device[-1] or "left_out" in device[-1]:
        print(f"the device cannot be measured: {device[-1]}", file=sys.stderr)
        return 1
    name = next(each["model"] for each in device if "model" in each)
    slug = "-".join(re.findall(r"[a-z0-9.]+", name.lower()))
    results = Results(parsed.out or _DEVICES / slug, parsed.type, device)
    for task in _tasks(parsed):
        passed = time.monotonic() - began
        print(f"{passed:5.0f} s  {task['name']}", file=sys.stderr, flush=True)
        for figures in _told(task, seconds - passed):
            results.take(figures)
    print(f"{name}, {parsed.type}: {json.dumps(device)}\n", *results.table(), sep="\n")
    try:
        results.draw()
    except ModuleNotFoundError:
        print("There are no pictures: matplotlib is not installed.")
    print(f"All figures are in {results.folder}.")
    return 1 if results.found["failed"] else 0


def _device(parsed: argparse.Namespace) -> Task:
    return {"measure": "device", "device": parsed.device, "threads": _threads(parsed)}


def _threads(parsed: argparse.Namespace) -> list[int]:
    """Return the numbers of processor threads to measure, largest first; empty for a GPU."""
    if parsed.device != "cpu":
        return []
    most = min(_MOST_THREADS, usable_processors())
    return sorted(parsed.threads or {most, *(1 << n for n in range(most.bit_length()))}, reverse=True)


def _tasks(parsed: argparse.Namespace) -> Iterator[Task]:
    """Return the measurements of the workers, the most important first."""
    common = {"measure": "model", "device": parsed.device, "type": parsed.type, "folder": str(parsed.files)}
    common |= {"repeat": parsed.repeat, "kernels": parsed.kernels}
    if _EXPERTS in (parsed.only or ()):
        own = {"measure": _EXPERTS, "device": parsed.device, "folder": str(parsed.files)}
        own |= {"repeat": parsed.repeat, "numbers": (8, 2, 0, 1) if parsed.quick else (512, 128, 0, 1)}
        for shape in ("qwen3-30b-a3b-skewed", "qwen3-30b-a3b"):
            yield own | {"name": f"experts, {shape}", "shape": shape}
    for threads in _threads(parsed):
        for shape in reversed(parsed.shape):
            name = f"{shape}, {threads} threads"
            works = _works(_ON_CPU, parsed)
            yield common | {"name": name, "shape": shape, "threads": threads, "works": works}
    for number, works in enumerate(_WORKS if parsed.device != "cpu" else ()):
        for shape in parsed.shape:
            if asked := _works(works, parsed):
                name = f"{shape}, {' and '.join(asked)}"
                yield common | {"name": name, "shape": shape, "threads": None, "works": asked}
        if number == 0 and parsed.device == "cuda" and find_spec("torch") is not None:
            for shape in parsed.shape:
                name = f"torch, {shape}"
                yield {"measure": "torch", "name": name, "shape": shape, "tokens": _TOKENS_OF_TORCH}


def _works(works: Works, parsed: argparse.Namespace) -> Works:
    """Return the requested works; with `--quick`, at the smallest sizes that run the same code."""
    asked = {name: numbers for name, numbers in works.items() if name in (parsed.only or works)}
    if not parsed.quick:
        return asked
    return {name: (8, 2, depth and 64, min(batch, 3)) for name, (_, _, depth, batch) in asked.items()}


def _told(task: Task, seconds: float) -> Iterator[Mapping[str, Any]]:
    """Let a worker measure within a time limit; yield its results, and last whether it failed."""
    if seconds <= 0:
        yield {"name": task["name"], "left_out": "no time was left"}
        return
    given = json.dumps({key: value for key, value in task.items() if key != "name"})
    command = [sys.executable, "-m", "benchmarks.gpu_worker", given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        complaints: list[str] = []
        listener = threading.Thread(target=complaints.extend, args=(worker.stderr,))
        listener.start()
        timer = threading.Timer(seconds, worker.kill)
        timer.start()
        for line in worker.stdout:
            yield {"name": task["name"], **json.loads(line)}
        timer.cancel()
        is_late = timer.finished.is_set() and not timer.is_alive() and worker.wait() < 0
        listener.join()
    if is_late:
        yield {"name": task["name"], "left_out": "the time was over before all of it was measured"}
    elif worker.returncode:
        print("".join(complaints), file=sys.stderr)
        why = complaints[-1].strip() if complaints else f"the process ended with {worker.returncode}"
        yield {"name": task["name"], "failed": why}


if __name__ == "__main__":
    raise SystemExit(main())
