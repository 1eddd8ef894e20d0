"""The server of llama.cpp as a peer: receives prompts as tokens over HTTP, and answers token by token."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["LlamaServer", "started"]

_HOST = "127.0.0.1"
_SECONDS_TO_START = 120


class LlamaServer:
    """A server that listens on a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    def stream(self, tokens: Sequence[int], count: int, **fields: Any) -> Iterator[float]:
        """Request `count` greedy tokens after a prompt; return the arrival time of each."""
        body = {"prompt": list(tokens), "n_predict": count, "temperature": 0, "ignore_eos": True}
        connection = http.client.HTTPConnection(_HOST, self._port, timeout=600)
        try:
            text = json.dumps(body | {"stream": True} | fields)
            connection.request("POST", "/completion", text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise SystemExit(f"llama-server answers {response.status}: {response.read(300)!r}")
            for line in response:
                if line.startswith(b"data: ") and not json.loads(line[6:]).get("stop"):
                    yield time.perf_counter()
        finally:
            connection.close()

    def first_token(self, tokens: Sequence[int]) -> float:
        """Return the seconds from a prompt to its first token."""
        began = time.perf_counter()
        return next(self.stream(tokens, 1)) - began


@contextmanager
def started(binary: Path, model: str, *options: str) -> Iterator[LlamaServer]:
    """Run the server with a model until the block ends."""
    with socket.socket() as free:
        free.bind((_HOST, 0))
        port = free.getsockname()[1]
    command = [str(binary), "-m", model, "--host", _HOST, "--port", str(port), "--no-ui", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(process, port)
        yield LlamaServer(port)
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection(_HOST, port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise SystemExit("llama-server does not answer; run it by hand to see why")
