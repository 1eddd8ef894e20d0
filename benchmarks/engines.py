"""The compared engines: commands that measure one file and print a line of JSON per measurement."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = [
    "CHASKI",
    "DEFAULT_KV",
    "Engine",
    "EngineError",
    "Process",
    "Values",
    "Workload",
    "chaski",
    "fresh_chaski",
    "heads",
    "ik_llama_cpp_settings",
    "llama_cpp_settings",
    "llama_cpp_version",
    "speculation",
]

CHASKI = "chaski"
DEFAULT_KV = "default"
"""The default types of keys and values in each engine: both have 16 bits."""
_WORKER = Path(__file__).parent / "llama_cpp_worker.py"
_TIME_LIMIT_SECONDS = 1800
_SINGLE = {"load": "load_seconds", "first_logits": "first_logits_seconds", "peak_memory": "peak_rss_bytes"}

Values = dict[str, float]
"""The values of one run, by name.

`prefill` and `decode` are in tokens per second, `load` and `first_logits` in seconds, `peak_memory` in
bytes."""


class EngineError(Exception):
    """An engine crashed, or printed something other than its result."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A prompt after `depth` tokens of history, then greedy tokens after the prompt.

    It computes `batch` sequences at once. Rates count the tokens of all of them, and the best of `repeat`
    runs counts.
    """

    prompt: int = 512
    generate: int = 64
    depth: int = 0
    batch: int = 1
    threads: int = 2
    repeat: int = 2


@dataclass(frozen=True, slots=True)
class Engine:
    """A named command, to which the file, the options and the workload are appended."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    rival: str | None = None
    """The name of a second setting that the same command measures in turns with the first."""
    takes: tuple[str, ...] = ("prompt", "generate", "depth", "batch", "threads", "repeat")
    """The parts of a workload for which the command has options."""
    stands: bool = False
    """True if it measures again for every line on its standard input."""

    def start(self, model: Path, workload: Workload) -> Process:
        """Start a fresh process, which measures immediately."""
        return Process(self, [*self.command, str(model), *self.options, *self._as_options(workload)])

    def _as_options(self, workload: Workload) -> list[str]:
        return [text for name in self.takes for text in (f"--{name}", str(getattr(workload, name)))]


class Process:
    """A process of an engine with its model loaded. It is idle between two measurements."""

    def __init__(self, engine: Engine, command: Sequence[str]) -> None:
        self._engine = engine
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=os.environ | engine.environment,
            )
        except OSError as error:
            self._errors.close()
            raise EngineError(f"{engine.name}: {error}") from error

    def result(self) -> dict[str, Values]:
        """Wait for the current measurement; return its values by the name of the engine or of its rival.

        Raises:
            EngineError: if the process crashes or takes longer than half an hour.
        """
        answer = self.answer()
        measured = {self._engine.name: _values(answer)}
        if self._engine.rival is not None:
            measured[self._engine.rival] = _values(answer["rival"])
        return measured

    def answer(self) -> dict[str, Any]:
        """Wait for the next line of the process.

        Raises:
            EngineError: as `result`, or if it prints something else.
        """
        assert self._process.stdout is not None
        limit = threading.Timer(_TIME_LIMIT_SECONDS, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            message = self._errors.read().strip().rpartition("\n")[2]
            raise EngineError(f"{self._engine.name} ended with {code}: {message}")
        try:
            found: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError as error:
            raise EngineError(f"{self._engine.name} printed {line!r:.200}") from error
        return found

    def measure_again(self) -> None:
        """Begin the next measurement."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then the result is missing, too
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the process and free its memory."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


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
    """Our own engine."""
    command = (sys.executable, "-m", "benchmarks.chaski_worker")
    environment = {} if kv_type == DEFAULT_KV else {"OLLAMA_KV_CACHE_TYPE": kv_type}
    return Engine(CHASKI, command, (), environment, stands=True)


def fresh_chaski() -> Engine:
    """Our own engine through its command line, in a fresh process each time."""
    return Engine(CHASKI, (sys.executable, "-m", "chaski", "bench"), ("--json",))


def speculation(overlap: float) -> Engine:
    """Our own engine with and without n-gram speculation."""
    command = (sys.executable, "-m", "benchmarks.speculation")
    return Engine(
        CHASKI,
        command,
        ("--json", "--overlap", str(overlap)),
        rival="chaski without speculation",
        takes=("prompt", "generate", "threads", "repeat"),
    )


def heads(chance: float) -> Engine:
    """Our own engine with and without the model's own heads, which are right with this probability."""
    command = (sys.executable, "-m", "benchmarks.drafting")
    options = ("--json", "--chance", str(chance))
    return Engine(CHASKI, command, options, rival="chaski without speculation", takes=("threads", "repeat"))


def llama_cpp_version(python: str) -> str:
    """Return the version of llama-cpp-python in that interpreter.

    Raises:
        EngineError: if the interpreter does not start or lacks the package.
    """
    script = "import importlib.metadata; print(importlib.metadata.version('llama-cpp-python'))"
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EngineError(f"{python} has no llama-cpp-python: {error}") from error
    return f"llama-cpp-python {done.stdout.strip()}"


def llama_cpp_settings(python: str, libraries: Sequence[Path], batch: int, kv_type: str) -> list[Engine]:
    """llama.cpp in all its settings, for each build in `libraries`; by default llama-cpp-python's own.

    The settings are repacked weights or not, flash attention or not, and for several sequences one key/value
    buffer or split ones.
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
            options += ["--kv-type", "f16" if kv_type == DEFAULT_KV else kv_type]
            name = f"llama.cpp{build}: {names}"
            engines.append(Engine(name, command, tuple(options), environment, stands=True))
    return engines


def ik_llama_cpp_settings(bench: Path) -> list[Engine]:
    """ik_llama.cpp through its program `llama-bench`, with and without repacking weights while loading."""
    command = (sys.executable, "-m", "benchmarks.llama_bench_worker", str(bench))
    return [
        Engine("ik_llama.cpp: plain", command),
        Engine("ik_llama.cpp: repack", command, ("--repack",)),
    ]
