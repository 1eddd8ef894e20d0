"""Measure the cost of `chaski top` and the page Live: `python -m benchmarks.watching MODEL.gguf`.

A server answers 64 streams. The turns have no watcher; `chaski top` in a terminal; a client that requests
what the page requests, one stream of figures and the cells of the cache each second; and both. The cost of
watching is processor time of the server's process, and additional processor time per token of the model's
process. The thread that waits for a batch also computes it, so times per thread are not meaningful. Answers
have the same length and begin one after another, so that the amount of history is constant. The model
computes on one thread, so that the other core is free.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.server import HOST, served, wait_until_ready

STREAMS, LENGTH, NAME = 64, 256, "watched"
SETTLE = 45  # seconds until each stream is in its second answer


@dataclass(frozen=True, slots=True)
class Turn:
    """The server's share of a core, the model's milliseconds per token, and tokens per second."""

    server: float
    token: float
    rate: float


class Server:
    """A server with its streams."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._url = pid, f"http://{HOST}:{port}"

    def begin(self) -> None:
        """Begin all streams, and wait until their lengths are steady."""
        for number in range(STREAMS):
            threading.Thread(target=self._stream, args=(number,), daemon=True).start()
        sleep(SETTLE)

    def turn(self, seconds: float) -> Turn:
        """Measure for this many seconds."""
        (worker,) = _children(self._pid)
        before, started = self._figures_of(worker), perf_counter()
        sleep(seconds)
        passed = perf_counter() - started
        tokens, server, model = (b - a for a, b in zip(before, self._figures_of(worker), strict=True))
        return Turn(server / passed, 1000 * model / tokens, tokens / passed)

    def _figures_of(self, worker: int) -> tuple[float, float, float]:
        """Return the tokens, and the processor times of the server and of the model's process, so far."""
        return self._model()["generated_tokens"], _processor_time(self._pid), _processor_time(worker)

    @contextmanager
    def nobody(self) -> Iterator[None]:
        """Do not watch, and wait as long as the others need to begin."""
        sleep(3)
        yield

    @contextmanager
    def page(self) -> Iterator[None]:
        """Send the page's requests until the end of the block."""
        is_over = threading.Event()
        looks = [threading.Thread(target=look, args=(is_over,)) for look in (self._figures, self._cells)]
        for look in looks:
            look.start()
        sleep(3)  # until they have begun
        try:
            yield
        finally:
            is_over.set()
            for look in looks:
                look.join()

    @contextmanager
    def top(self) -> Iterator[None]:
        """Run `chaski top` in a terminal until the end of the block."""
        ours, theirs = pty.openpty()
        environment = {**os.environ, "OLLAMA_HOST": self._url, "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "chaski", "top"]
        top = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        threading.Thread(target=_drain, args=(ours,), daemon=True).start()
        sleep(3)  # until they have begun
        assert top.poll() is None, "chaski top ended"
        try:
            yield
        finally:
            top.terminate()
            top.wait(10)
            os.close(theirs)

    @contextmanager
    def both(self) -> Iterator[None]:
        """Run the page's requests and `chaski top`."""
        with self.page(), self.top():
            yield

    def _model(self) -> Mapping[str, Any]:
        models = json.load(self._open("/api/live"))["models"]
        return next(iter(models), {})

    def _stream(self, number: int) -> None:
        options = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": number}
        body = {"model": NAME, "prompt": f"{number} runners carry", "raw": True}
        length = (number + 1) * LENGTH // STREAMS
        with suppress(OSError):  # the server has ended
            while True:
                body["options"] = options | {"num_predict": length}
                for line in self._open("/api/generate", body):
                    assert b'"error"' not in line, line
                length = LENGTH

    def _figures(self, is_over: threading.Event) -> None:
        with self._open("/api/live?stream=1") as stream:
            while not is_over.is_set():
                stream.readline()

    def _cells(self, is_over: threading.Event) -> None:
        while not is_over.wait(1):
            self._open(f"/api/live/cache?model={NAME}").read()

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return urlopen(Request(self._url + path, None if body is None else json.dumps(body).encode()))


def _children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _processor_time(pid: int) -> float:
    """Return the processor time of all threads in seconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _drain(terminal: int) -> None:
    while True:
        try:
            os.read(terminal, 65536)
        except OSError:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10, help="seconds of a turn")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        settings = {"OLLAMA_MODELS": folder, "CHASKI_THREADS": "1", "OLLAMA_CONTEXT_LENGTH": "1024"}
        modelfile = Path(folder, "Modelfile")
        modelfile.write_text(f"FROM {arguments.model.resolve()}\n")
        command = [sys.executable, "-m", "chaski", "create", NAME, "--file", str(modelfile), "--link"]
        subprocess.run(command, env={**os.environ, **settings}, check=True, stdout=subprocess.DEVNULL)
        with served(STREAMS, {**settings, "CHASKI_PREFIX_CACHE": "off"}) as (process, port):
            wait_until_ready(port)
            server = Server(process.pid, port)
            server.begin()
            watchers = {"nobody": server.nobody, "top": server.top, "page": server.page, "both": server.both}
            turns: dict[str, list[Turn]] = {name: [] for name in watchers}
            for _ in range(arguments.rounds):
                for name, watched in watchers.items():
                    with watched():
                        turns[name].append(server.turn(arguments.seconds))
    _report(turns)


def _report(turns: Mapping[str, list[Turn]]) -> None:
    """Print medians of all turns, and of their differences to the turn without watchers in the same round."""
    alone = turns["nobody"]
    titles = ("server", "adds", "ms/token", "adds", "tokens/s")
    print(f"{'watched by':10}", *(f"{title:>8}" for title in titles))
    for name, found in turns.items():
        server, token, rate = (median(getattr(turn, what) for turn in found) for what in Turn.__slots__)
        more = median(with_.server - without.server for without, with_ in zip(alone, found, strict=True))
        ratio = median(with_.token / without.token for without, with_ in zip(alone, found, strict=True))
        print(f"{name:10} {server:8.2%} {more:8.2%} {token:8.3f} {ratio - 1:8.2%} {rate:8.1f}")


if __name__ == "__main__":
    main()
