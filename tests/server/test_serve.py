"""`chaski serve` as a process: it starts and ends quickly, and leaves a store unchanged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import chaski
from tests.runner.channels.worker.workers import is_running
from tests.server.running import Running, wait_until
from tests.store.stores import snapshot

ROOT = Path(__file__).parents[2]


@pytest.fixture
def process(models: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"OLLAMA_MODELS": str(models), "CHASKI_THREADS": "1", "PYTHONPATH": str(ROOT)}
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


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_it_without_alarm(process: subprocess.Popen[str], times: int) -> None:
    """One signal ends an idle server; a second one ends it also during an answer."""
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    with chaski.load("guide") as model:
        (end,) = model.tokenizer.eos_ids
    endless = {"num_predict": 1_000_000 if times == 2 else 1, "logit_bias": {str(end): -100}}
    body = json.dumps({"model": "guide", "prompt": "a", "raw": True, "options": endless}).encode()
    with urllib.request.urlopen(f"{url}/api/generate", body, timeout=20) as response:
        response.readline()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
    assert process.wait(10) == 0
    kinds = [line.split()[0] for line in process.stderr.read().splitlines()]
    assert kinds[0] == "Note:"  # the note of the loaded model
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", kind) for kind in kinds[1:])


@pytest.mark.long
def test_a_store_stays_as_it_was(server: Running, models: Path) -> None:
    before = snapshot(models)
    server.get("/api/tags")
    server.post("/api/show", {"model": "helper", "verbose": True})
    server.post("/api/generate", {"model": "helper", "prompt": "hello"})
    server.get("/v1/models")
    server.get("/api/ps")
    assert snapshot(models) == before
