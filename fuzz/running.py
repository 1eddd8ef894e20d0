"""Runs a target in this process: by Atheris, which looks for new branches, or by changes of its corpus."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct, field, to_builtins

from fuzz.target import CORPUS, Finding, Target, outcome

__all__ = [
    "Report",
    "feed_atheris",
    "has_atheris",
    "instrumented",
    "limit_memory",
    "run_atheris",
    "run_changes",
]

_MOST_BYTES = 1 << 16
# Bytes of memory that a process may reserve in addition to what it has at the start.
_MEMORY = 6 << 30
_INSTRUMENTED = ["chaski", "jinja2", "python_multipart"]


class Report(Struct):
    """What a run did. `findings`: by place, the trace and the file with the input."""

    executions: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    coverage: int | None = None
    findings: dict[str, tuple[str, str]] = field(default_factory=dict)


class _Recorder:
    """Feeds inputs to a target and records what happens. `folder` gets one finding for each place."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._started = time.monotonic()
        self.report = Report()

    def feed(self, data: bytes) -> None:
        begun = time.monotonic()
        found = outcome(self._target, data)
        self.report.executions += 1
        self.report.slowest = max(self.report.slowest, time.monotonic() - begun)
        self.report.seconds = time.monotonic() - self._started
        if isinstance(found, Finding):
            self._note(found, data)
        else:
            self.report.accepted += found

    def _note(self, found: Finding, data: bytes) -> None:
        if found.place in self.report.findings:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._target.name}-{len(self.report.findings)}-{abs(hash(data)) % 10**6:06}"
        path.write_bytes(data)
        self.report.findings[found.place] = found.trace, str(path)


def has_atheris() -> bool:
    """Return whether Atheris is installed (`pip install atheris`)."""
    return find_spec("atheris") is not None


def instrumented(load: Callable[[], Target]) -> Target:
    """Import a target so that Atheris sees the branches of chaski and of its parsers."""
    import atheris

    # Atheris cannot instrument what the finder of an installation for development finds. As the last one, it
    # finds only the native core.
    sys.meta_path.sort(key=lambda finder: type(finder).__module__.startswith("_editable"))
    with atheris.instrument_imports(include=_INSTRUMENTED):
        return load()


def limit_memory() -> None:
    """Make an allocation of many gigabytes fail instead of filling the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run_changes(target: Target, count: int, seed: int, seconds: float, folder: Path) -> Report:
    """Feed the corpus and then `count` changes of its inputs, as one seed chooses them; at most `seconds`."""
    rng = random.Random(seed)
    recorder = _Recorder(target, folder)
    corpus = target.corpus()
    for data in corpus:
        recorder.feed(data)
    until = time.monotonic() + seconds
    for _ in range(count):
        if time.monotonic() > until:
            break
        data = rng.choice(corpus)
        for _ in range(rng.choice((1, 1, 1, 2))):
            data = target.mutate(data, rng)
        recorder.feed(data)
    return recorder.report


def run_atheris(target: Target, seconds: int, kept: Path, folder: Path, report: Path) -> None:
    """Feed inputs for `seconds` and leave the process. Inputs that reach new branches are kept in `kept`.

    The report is written to a file once a second.
    """
    import atheris

    recorder = _Recorder(target, folder)

    def feed(data: bytes) -> None:
        recorder.feed(data)
        if time.monotonic() > written.at + 1:
            report.write_text(json.dumps(to_builtins(recorder.report)))
            written.at = time.monotonic()

    written = _Written()
    kept.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": seconds,
        "max_len": _MOST_BYTES,
        "timeout": 60,
        "handle_alrm": 0,
        "rss_limit_mb": 3000,
        "artifact_prefix": f"{folder}/{target.name}-",
        "print_final_stats": 1,
        "verbosity": 1,
    }
    arguments = [sys.argv[0], *(f"-{name}={value}" for name, value in options.items())]
    atheris.Setup([*arguments, str(kept), str(CORPUS / target.name)], feed, custom_mutator=_mutator(target))
    atheris.Fuzz()


def feed_atheris(target: Target, arguments: list[str]) -> None:
    """Feed inputs as libFuzzer's `arguments` say, until the first finding. OSS-Fuzz runs targets by this."""
    import atheris

    def feed(data: bytes) -> None:
        found = outcome(target, data)
        if isinstance(found, Finding):
            raise AssertionError(found.trace)

    atheris.Setup(arguments, feed, custom_mutator=_mutator(target))
    atheris.Fuzz()


def _mutator(target: Target) -> Callable[[bytes, int, int], bytes]:
    """Return the changes of a target, with some of libFuzzer's own among them."""
    import atheris

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return target.mutate(data, rng)[:most]

    return mutate


class _Written(Struct):
    """When the report was last written. libFuzzer ends the process itself."""

    at: float = 0.0
