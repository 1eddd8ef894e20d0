"""Measure the gains and costs of the prefix cache: `python -m benchmarks.prefix_cache MODEL`.

* restart: a process computes a prompt and is killed. How long does the next process take to the first token,
  with files in the page cache, and with files only on disk (`--cold-disk`)? How long does the same process
  take if the prompt returns from memory?
* conversations: how long does the first token of a continued conversation take if there are more
  conversations than sequences? Users need at least a second to write their next message.
* unique: how much slower are prompts with different beginnings, with memory, and with files too? Once while
  memory grows, and once when the tiers are full and reuse their space.

Each process is fresh and has its own store in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import chaski
from benchmarks.llama_server import started

__all__ = ["main"]

_FIRST_TOKENS, _LAST_TOKENS = 100, 30000
# Idle seconds between two turns of conversations.
_PAUSE = 1.0
# Memory of the tier, and the number of prompts that fill it and the queue of writes.
_SMALL, _UNIQUE = "200MB", 12


def main() -> None:
    """Measure the requested cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", choices=["restart", "conversations", "unique"])
    parser.add_argument("--tokens", type=int, default=16384, help="tokens of the prompt before the restart")
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--length", type=int, default=4000, help="tokens of a conversation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold-disk", action="store_true", help="drop the files from the page cache, too")
    parser.add_argument("--vocabulary", type=int, default=_LAST_TOKENS, help="tokens are below this number")
    parser.add_argument("--peer", type=Path, help="llama-server, for the conversations too")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        _work(arguments)
        return
    for name in ("restart", "conversations", "unique") if arguments.only is None else (arguments.only,):
        {"restart": _restart, "conversations": _conversations, "unique": _unique}[name](arguments)


def _restart(arguments: argparse.Namespace) -> None:
    with _store() as store:
        job = {"do": "prompt", "tokens": arguments.tokens}
        cold = _run(arguments, store, {**job, "again": True})
        _report(f"{arguments.tokens} tokens, nothing kept", cold["first"], cold["first"])
        _report("the same process, from memory", cold["again"], cold["first"])
        warm = [_run(arguments, store, job)["first"] for _ in range(arguments.rounds)]
        _report("another process, from files in memory", median(warm), cold["first"])
        if arguments.cold_disk:
            forgotten = []
            for _ in range(arguments.rounds):
                for path in store.rglob("*.block"):
                    _forget(path)
                forgotten.append(_run(arguments, store, job)["first"])
            _report("another process, from files on disk", median(forgotten), cold["first"])


def _conversations(arguments: argparse.Namespace) -> None:
    with _store() as store:
        job = {"do": "conversations", "count": arguments.conversations, "length": arguments.length}
        found = _run(arguments, store, job)
        first = median(found["first"])
        print(f"{arguments.conversations} conversations of {arguments.length} tokens, four at a time")
        _report("begun", first, first)
        _report("gone on with", median(found["again"]), first)
        _report("the slowest of them", max(found["again"]), first)
    if arguments.peer is not None:
        size = -(-(arguments.length + 256) // 1024) * 1024
        options = ("--threads", "2", "--parallel", "4", "--ctx-size", str(4 * size), "--no-kv-unified")
        with started(arguments.peer, arguments.model, *options) as server:
            theirs = _conversed(server.first_token, job, arguments.vocabulary)
        first = median(theirs["first"])
        _report("llama-server: begun", first, first)
        _report("llama-server: gone on with", median(theirs["again"]), first)
        _report("llama-server: the slowest of them", max(theirs["again"]), first)


def _unique(arguments: argparse.Namespace) -> None:
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for setting in ("off", "memory", "on"):
            with _store() as store:
                found = _run(arguments, store, {"do": "unique", "setting": setting, "memory": _SMALL})
                for when in ("fresh", "full"):
                    rates.setdefault((setting, when), []).append(found[when])
    for (setting, when), measured in rates.items():
        share = median(rate / other for rate, other in zip(measured, rates["off", when], strict=True))
        print(f"unique prompts, {setting:<7} {when:<6}{median(measured):8.1f} tok/s  {share:6.3f} of off")


def _work(arguments: argparse.Namespace) -> None:
    """Do a job in a separate process, print the results, and wait to be killed."""
    job = arguments.job
    most = max(job.get("tokens", 0), job.get("length", 0) + 256, 4096) + 64
    rounded = -(-most // 1024) * 1024
    parallel = 4 if job["do"] == "conversations" else 1
    model = chaski.load(arguments.model, context=rounded, parallel=parallel)
    print(json.dumps(_JOBS[job["do"]](model, job, arguments.vocabulary)), flush=True)
    tiers = model.engine.tiers
    if tiers is not None and tiers.disk is not None:
        tiers.disk.settle(120)
    os.kill(os.getpid(), signal.SIGKILL)


def _prompt(model: chaski.LLM, job: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    tokens = _random(1, job["tokens"] - 1, vocabulary)
    found = {"first": _first_token(model, tokens)}
    if job.get("again"):
        _first_token(model, _random(2, 600, vocabulary))  # another prompt takes the cells
        found["again"] = _first_token(model, tokens)
    return found


def _talk(model: chaski.LLM, job: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    return _conversed(partial(_first_token, model), job, vocabulary)


def _conversed(ask: Callable[[list[int]], float], job: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """Begin all conversations, continue each in another order; return seconds to the first tokens."""
    texts = [_random(number, job["length"], vocabulary) for number in range(job["count"])]
    first = []
    for text in texts:
        first.append(ask(text))
        sleep(_PAUSE)
    order = list(range(len(texts)))
    random.Random(5).shuffle(order)
    again = []
    for number in order:
        again.append(ask(texts[number] + _random(1000 + number, 20, vocabulary)))
        sleep(_PAUSE)
    return {"first": first, "again": again}


def _all_new(model: chaski.LLM, job: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    _first_token(model, _random(99, 600, vocabulary))
    texts = [_random(number, 1536, vocabulary) for number in range(_UNIQUE + 4)]
    rates = []
    for text in texts:
        began = perf_counter()
        _first_token(model, text)
        rates.append(len(text) / (perf_counter() - began))
    return {"fresh": median(rates[:4]), "full": median(rates[-4:])}


_JOBS = {"prompt": _prompt, "conversations": _talk, "unique": _all_new}


def _first_token(model: chaski.LLM, tokens: list[int]) -> float:
    began = perf_counter()
    for _ in model.stream(tokens, num_predict=1, temperature=0):
        return perf_counter() - began
    raise AssertionError("no token came")


def _random(seed: int, count: int, vocabulary: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(_FIRST_TOKENS, vocabulary) for _ in range(count)]


def _run(arguments: argparse.Namespace, store: Path, job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.prefix_cache", arguments.model, "--job", json.dumps(job)]
    command += ["--vocabulary", f"{arguments.vocabulary}"]
    environment = {**os.environ, "OLLAMA_MODELS": str(store)}
    environment["CHASKI_PREFIX_CACHE"] = job.get("setting", "on")
    if "memory" in job:
        environment["CHASKI_PREFIX_CACHE_MEMORY"] = job["memory"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"{' '.join(command)}: ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _store() -> Iterator[Path]:
    with TemporaryDirectory(dir=os.environ.get("CHASKI_BENCHMARK_FOLDER")) as folder:
        yield Path(folder)


def _forget(path: Path) -> None:
    """Let the system drop a file from its page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _report(what: str, seconds: float, cold: float) -> None:
    print(f"{what:<42}{seconds * 1e3:10.1f} ms {100 * seconds / cold:7.2f} %", flush=True)


if __name__ == "__main__":
    main()
