"""Measures what `chaski top` and the page Live cost a server: `python -m benchmarks.watching MODEL.gguf`.

A server answers 64 streams. In turns nobody watches, and `chaski top` in a terminal and a client that asks
what the page asks: one stream of figures, and the cells of the cache each second. The processor time of the
server's process, and of the threads of the model's process that compute nothing, tells what watching costs;
tokens a second tell what is left to the streams. The model computes on one thread, so that the other core is
free.
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

STREAMS, NAME = 64, "watched"


@dataclass(frozen=True, slots=True)
class Turn:
    """Shares of a core that the server and the model's other threads took, and tokens a second."""

    server: float
    worker: float
    rate: float


class Server:
    """A server with its streams."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._url = pid, f"http://{HOST}:{port}"

    def begin(self) -> None:
        """Begin all streams, and wait until they are all in their answers."""
        for number in range(STREAMS):
            threading.Thread(target=self._stream, args=(number,), daemon=True).start()
        while self._model().get("running", 0) < STREAMS:
            sleep(1)
        sleep(5)

    def turn(self, seconds: float) -> Turn:
        """Measure for so many seconds."""
        worker = next(iter(_children(self._pid)))
        computing = max(_threads(worker), key=_threads(worker).__getitem__)
        before, started = (self._model(), _threads(self._pid), _threads(worker)), perf_counter()
        sleep(seconds)
        passed = perf_counter() - started
        after = (self._model(), _threads(self._pid), _threads(worker))
        tokens = after[0]["generated_tokens"] - before[0]["generated_tokens"]
        server = sum(after[1].values()) - sum(before[1].values())
        others = [after[2][thread] - before[2].get(thread, 0) for thread in after[2] if thread != computing]
        return Turn(server / passed, sum(others) / passed, tokens / passed)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """`chaski top` and what the page asks, until the end of the block."""
        is_over = threading.Event()
        page = [threading.Thread(target=look, args=(is_over,)) for look in (self._figures, self._cells)]
        ours, theirs = pty.openpty()
        environment = {**os.environ, "OLLAMA_HOST": self._url, "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "chaski", "top"]
        top = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        reader = threading.Thread(target=_drain, args=(ours,), daemon=True)
        for thread in (*page, reader):
            thread.start()
        sleep(3)  # until they have begun
        assert top.poll() is None, "chaski top ended"
        try:
            yield
        finally:
            is_over.set()
            top.terminate()
            top.wait(10)
            os.close(theirs)
            for thread in page:
                thread.join()

    def _model(self) -> Mapping[str, Any]:
        models = json.load(self._open("/api/live"))["models"]
        return next(iter(models), {})

    def _stream(self, number: int) -> None:
        options = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": number, "num_predict": -1}
        body = {"model": NAME, "prompt": f"{number} runners carry", "raw": True, "options": options}
        with suppress(OSError):  # the server has ended
            while True:
                for line in self._open("/api/generate", body):
                    assert b'"error"' not in line, line

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


def _threads(pid: int) -> dict[str, float]:
    """Return the processor time of each thread in seconds."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


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
    parser.add_argument("--seconds", type=float, default=10, help="of a turn")
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
            alone, watched = [], []
            for _ in range(arguments.rounds):
                alone.append(server.turn(arguments.seconds))
                with server.watched():
                    watched.append(server.turn(arguments.seconds))
    _report("server's process", [turn.server for turn in alone], [turn.server for turn in watched])
    _report("model's process without computing", [t.worker for t in alone], [t.worker for t in watched])
    ratios = [with_.rate / without.rate for without, with_ in zip(alone, watched, strict=True)]
    rate = median(turn.rate for turn in alone)
    span = f"{min(ratios):.4f} to {max(ratios):.4f}"
    print(f"{rate:.1f} tokens a second, watched {median(ratios):.4f} of it ({span})")


def _report(title: str, alone: list[float], watched: list[float]) -> None:
    cost = median(with_ - without for without, with_ in zip(alone, watched, strict=True))
    print(f"{title}: {median(alone):.2%} of a core, watched {median(watched):.2%}; watching costs {cost:.2%}")


if __name__ == "__main__":
    main()
