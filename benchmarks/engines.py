"""The engines under comparison: each is a command that measures one file and prints one JSON object."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "CHASKI",
    "Engine",
    "EngineError",
    "Values",
    "Workload",
    "chaski",
    "llama_cpp_settings",
    "llama_cpp_version",
    "speculation",
]

CHASKI = "chaski"
_WORKER = Path(__file__).parent / "llama_cpp_worker.py"
_TIME_LIMIT_SECONDS = 1800
_SINGLE = {"load": "load_seconds", "first_logits": "first_logits_seconds", "peak_memory": "peak_rss_bytes"}

Values = dict[str, float]
"""What one run measured, by name: `prefill` and `decode` in tokens per second, `load` and `first_logits` in
seconds, `peak_memory` in bytes."""


class EngineError(Exception):
    """An engine crashed, or printed something else than its result."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured: a prompt after `depth` tokens of history, then greedy tokens after the prompt.

    `batch` sequences at once; rates count the tokens of all of them, and the best of `repeat` counts.
    """

    prompt: int = 512
    generate: int = 64
    depth: int = 0
    batch: int = 1
    threads: int = 2
    repeat: int = 2


@dataclass(frozen=True, slots=True)
class Engine:
    """A named command; the file, the options and the workload are appended to it."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    rival: str | None = None
    """The name of a second way that the same command measures in turns with the first."""
    takes: tuple[str, ...] = ("prompt", "generate", "depth", "batch", "threads", "repeat")
    """What of a workload the command has options for."""

    def measure(self, model: Path, workload: Workload) -> dict[str, Values]:
        """Run a fresh process -> what was measured, by the name of the engine or of its rival.

        Raises:
            EngineError: if it crashes or takes longer than half an hour.
        """
        result = self._run([*self.command, str(model), *self.options, *self._as_options(workload)])
        measured = {self.name: _values(result)}
        if self.rival is not None:
            measured[self.rival] = _values(result["rival"])
        return measured

    def _as_options(self, workload: Workload) -> list[str]:
        return [text for name in self.takes for text in (f"--{name}", str(getattr(workload, name)))]

    def _run(self, command: Sequence[str]) -> dict[str, Any]:
        environment = os.environ | self.environment
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, env=environment
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"{self.name}: {error}") from error
        if done.returncode:
            message = done.stderr.strip().rpartition("\n")[2]
            raise EngineError(f"{self.name} ended with {done.returncode}: {message}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def _values(result: dict[str, Any]) -> Values:
    values: Values = {}
    for what in ("prefill", "decode"):
        if rates := result.get(f"{what}_tokens_per_second"):
            values[what] = max(rates)
    for what, key in _SINGLE.items():
        if key in result:
            values[what] = result[key]
    return values


def chaski(kv_type: str) -> Engine:
    """Our own engine, as its command line measures it."""
    command = (sys.executable, "-m", "chaski", "bench")
    return Engine(CHASKI, command, ("--json",), {"OLLAMA_KV_CACHE_TYPE": kv_type})


def speculation(overlap: float) -> Engine:
    """Our own engine with guesses from the prompt, and without."""
    command = (sys.executable, "-m", "benchmarks.speculation")
    return Engine(
        CHASKI,
        command,
        ("--json", "--overlap", str(overlap)),
        rival="chaski without guesses",
        takes=("prompt", "generate", "threads", "repeat"),
    )


def llama_cpp_version(python: str) -> str:
    """What llama-cpp-python in that interpreter calls itself.

    Raises:
        EngineError: if the interpreter does not start or has none.
    """
    script = "import importlib.metadata; print(importlib.metadata.version('llama-cpp-python'))"
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"{python} has no llama-cpp-python: {error}") from error
    return f"llama-cpp-python {done.stdout.strip()}"


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
