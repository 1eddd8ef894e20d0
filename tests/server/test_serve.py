"""`chaski serve` as a process: it starts and ends quickly, and leaves a store unchanged."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import chaski
from tests.runner.channels.worker.workers import is_running
from tests.server.running import Running, wait_until
from tests.store.stores import snapshot

ROOT = Path(__file__).parents[2]


@pytest.fixture
def process(models: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"OLLAMA_MODELS": str(models), "CHASKI_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["CHASKI_GRACE"] = "1s"
    command = [sys.executable, "-m", "chaski", "serve", "--host", "127.0.0.1:0", "--verbose"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        process.kill()


def test_it_serves_and_ends_with_its_workers(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    url = re.fullmatch(r"chaski listens on (http://127\.0\.0\.1:\d+)\n", process.stderr.readline())
    assert url is not None
    secret = "gloriosa"
    body = json.dumps({"model": "helper", "prompt": secret, "stream": False}).encode()
    with urllib.request.urlopen(f"{url[1]}/api/generate", body, timeout=20) as response:
        assert json.load(response)["done"]
    for wrong in (
        {"prompt": secret, "options": {"stop": [secret], "top_p": 9}},
        {"format": {secret: [secret]}},
    ):
        body = json.dumps(
            {"model": "helper", "messages": [{"role": "user", "content": secret}]} | wrong
        ).encode()
        for path in ("api/generate", "api/chat", "v1/chat/completions"):
            with suppress(urllib.error.HTTPError):
                urllib.request.urlopen(f"{url[1]}/{path}", body, timeout=20).close()
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    assert len(children) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    wait_until(lambda: not is_running(children[0]))
    rest = process.stderr.read()
    assert "Traceback" not in rest
    assert "loaded helper" in rest  # it does log
    assert secret not in rest


def test_a_burst_of_connections_waits_for_a_busy_server(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    port = int(process.stderr.readline().rpartition(":")[2])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/version", timeout=20):
        pass
    process.send_signal(signal.SIGSTOP)
    with ExitStack() as stack:
        # Beyond its line the system drops a connection, which is tried again after a second.
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.5))
        process.send_signal(signal.SIGCONT)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/version", timeout=20) as response:
            assert json.load(response)["version"]


def test_a_stranger_cannot_fill_the_log(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    port = int(process.stderr.readline().rpartition(":")[2])
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert process.stderr.read().count("Invalid HTTP") == 1


def test_unused_objects_are_found_among_new_ones_mostly() -> None:
    program = """
import gc, weakref
from chaski.server.run import _collect_old_objects_seldom

class Node: pass

_collect_old_objects_seldom()
before = gc.get_stats()[2]["collections"]
kept = [Node() for _ in range(200_000)]
node = Node()
node.self = node
reference = weakref.ref(node)
del node
kept += [Node() for _ in range(200_000)]
print(gc.get_stats()[2]["collections"] - before, reference() is None)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "0 True\n"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_it_without_alarm(process: subprocess.Popen[str], times: int) -> None:
    """One signal ends an idle server; a second one ends it also during an answer."""
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    options = {**endless(), "num_predict": 1_000_000 if times == 2 else 1}
    body = json.dumps({"model": "guide", "prompt": "a", "raw": True, "options": options}).encode()
    with urllib.request.urlopen(f"{url}/api/generate", body, timeout=20) as response:
        response.readline()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
    assert process.wait(10) == 0
    kinds = [line.split()[0] for line in process.stderr.read().splitlines()]
    assert kinds[0] == "Note:"  # the note of the loaded model
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", kind) for kind in kinds[1:])


def endless() -> dict[str, object]:
    """Options of the guide for an answer without an end."""
    with chaski.load("guide") as model:
        (end,) = model.tokenizer.eos_ids
    return {"logit_bias": {str(end): -100}}


@pytest.mark.long
def test_answers_that_outlive_the_grace_end_with_an_error_of_their_api(
    process: subprocess.Popen[str],
) -> None:
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    asked = {"model": "guide", "messages": [{"role": "user", "content": "a"}]}
    bodies: dict[str, dict[str, object]] = {
        "api/chat": {**asked, "stream": False, "options": {**endless(), "num_predict": 100_000}},
        "v1/chat/completions": {**asked, **endless(), "max_tokens": 100_000},
    }
    found: dict[str, tuple[int, object, str | None]] = {}

    def ask(path: str, body: dict[str, object]) -> None:
        try:
            request = urllib.request.urlopen(f"{url}/{path}", json.dumps(body).encode(), timeout=30)
            with request as response:
                found[path] = response.status, json.load(response), None
        except urllib.error.HTTPError as error:
            found[path] = error.code, json.load(error), error.headers["Retry-After"]

    threads = [threading.Thread(target=ask, args=each) for each in bodies.items()]
    body = json.dumps({"prompt": "a", "raw": True, "model": "guide", "options": endless()}).encode()
    with urllib.request.urlopen(f"{url}/api/generate", body, timeout=30) as response:
        response.readline()
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        *_, last = response
    for thread in threads:
        thread.join()
    assert "unloaded before this was answered" in json.loads(last)["error"]
    assert {path: (status, after) for path, (status, _, after) in found.items()} == dict.fromkeys(
        bodies, (503, "1")
    )
    kinds = {path: body["error"] for path, (_, body, _) in found.items()}  # type: ignore[index]
    assert "unloaded" in kinds["api/chat"]
    assert "unloaded" in kinds["v1/chat/completions"]["message"]
    assert process.wait(10) == 0


def test_a_server_without_its_cluster_is_alive_but_not_ready(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str | None] = [None, "the head is gone", "the head is gone"]
    monkeypatch.setattr(server.app.state, "cluster", SimpleNamespace(problem=lambda: problems.pop(0)))
    assert server.get("/health/ready").status == 200
    for path in ("/health", "/health/ready"):
        reply = server.get(path)
        assert (reply.status, reply.headers["retry-after"]) == (503, "10")
        assert reply.json["reason"] == "the head is gone"
    assert server.get("/health/live").json == {"status": "ok"}


@pytest.mark.long
def test_a_store_stays_as_it_was(server: Running, models: Path) -> None:
    before = snapshot(models)
    server.get("/api/tags")
    server.post("/api/show", {"model": "helper", "verbose": True})
    server.post("/api/generate", {"model": "helper", "prompt": "hello"})
    server.get("/v1/models")
    server.get("/api/ps")
    assert snapshot(models) == before
