"""The engines under comparison: each is a command that measures one file and prints one JSON object."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Engine", "EngineError", "Result", "Workload", "chaski", "llama_cpp_settings", "read_bandwidth"]

_WORKER = Path(__file__).parent / "llama_cpp_worker.py"
_TIME_LIMIT_SECONDS = 1800


class EngineError(Exception):
    """An engine crashed, or printed something else than its result."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured: a prompt after `depth` tokens of history, then greedy tokens after the prompt.

    `batch` sequences at once; rates count the tokens of all of them.
    """

    prompt: int = 512
    generate: int = 64
    depth: int = 0
    batch: int = 1
    threads: int = 2
    repeat: int = 2


# The shortest way to first logits.
_COLD_START = {"prompt": 1, "generate": 1, "depth": 0, "batch": 1, "repeat": 1}


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one engine. Rates in tokens per second, the best of the repeats in one process."""

    prefill: float
    decode: float
    load_seconds: float
    first_logits_seconds: float
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Engine:
    """A named command; the file and the workload are appended to it."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def measure(self, model: Path, workload: Workload) -> Result:
        """Two fresh processes: one for the rates and the memory, one for the cold start."""
        rates = self._run(model, workload)
        cold = self._run(model, Workload(threads=workload.threads, **_COLD_START))
        return Result(
            prefill=max(rates["prefill_tokens_per_second"]),
            decode=max(rates["decode_tokens_per_second"]),
            load_seconds=cold["load_seconds"],
            first_logits_seconds=cold["first_logits_seconds"],
            peak_rss_bytes=rates["peak_rss_bytes"],
        )

    def _run(self, model: Path, workload: Workload) -> dict[str, Any]:
        command = [*self.command, str(model), *self.options]
        for option in ("prompt", "generate", "depth", "batch", "threads", "repeat"):
            command += [f"--{option}", str(getattr(workload, option))]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIME_LIMIT_SECONDS,
            env=os.environ | self.environment,
        )
        if done.returncode:
            message = done.stderr.strip().rpartition("\n")[2]
            raise EngineError(f"{self.name} ended with {done.returncode}: {message}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def chaski(program: str, kv_type: str) -> Engine:
    """Our own engine, as its command line measures it."""
    return Engine("chaski", (program, "bench"), ("--json",), {"OLLAMA_KV_CACHE_TYPE": kv_type})


def llama_cpp_settings(python: str, libraries: Sequence[Path], batch: int, kv_type: str) -> list[Engine]:
    """llama.cpp in all its settings, for each build in `libraries`; none means llama-cpp-python's own.

    Repacked weights or not, flash attention or not; for several sequences one key/value buffer or split ones.
    """
    places = [(f" ({path.parent.name})", {"LLAMA_CPP_LIB_PATH": str(path)}) for path in libraries]
    switches = [("repack", "plain", "extra-bufts"), ("flash", "no flash", "flash")]
    if batch > 1:
        switches.append(("unified", "split", "unified"))
    engines = []
    for build, environment in places or [("", {})]:
        for choice in itertools.product((True, False), repeat=len(switches)):
            chosen = list(zip(choice, switches, strict=True))
            names = ", ".join(on if is_on else off for is_on, (on, off, _) in chosen)
            options = [f"--{'' if is_on else 'no-'}{option}" for is_on, (_, _, option) in chosen]
            command = (python, str(_WORKER))
            engines.append(
                Engine(f"llama.cpp{build}: {names}", command, (*options, "--kv-type", kv_type), environment)
            )
    return engines


def read_bandwidth(threads: int) -> float:
    """Bytes per second that this many threads read from memory just now; the best of three."""
    data = np.ones(1 << 26, np.int64)  # 512 MB, far more than any cache
    parts = np.array_split(data, threads)
    best = 0.0
    for _ in range(3):
        workers = [threading.Thread(target=np.bitwise_or.reduce, args=(part,)) for part in parts]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, data.nbytes / (time.perf_counter() - started))
    return best
