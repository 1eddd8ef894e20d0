"""A real Ray cluster on this machine: placing, dying, leaving. Skipped if Ray is not installed."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError

import pytest

from chaski.cluster.autoscaling import Bounds
from chaski.cluster.connection import LOCAL, Cluster
from chaski.errors import GGUFError, OutOfMemoryError
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.cluster.nodes import MARK, NEEDS_RAY, marked_processes
from tests.tiny_llama import write_tiny_llama

pytestmark = NEEDS_RAY


@contextmanager
def server(store: Path, *options: str) -> Iterator[str]:
    """Run `chaski serve` with its own cluster; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"OLLAMA_MODELS": str(store), "OLLAMA_HOST": host, "CHASKI_THREADS": "1"}
    command = [sys.executable, "-m", "chaski", "serve", "--cluster", "local", *options]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            assert any("listens" in line for line in lines), "it says why it does not"
            yield f"http://{host}"
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 0


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=100) as reply:
        return json.load(reply)


def chaski(url: str, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "chaski", *words],
        env=os.environ | {"OLLAMA_HOST": url.removeprefix("http://")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def generate(url: str, **options: Any) -> str:
    body = {"model": "guide", "prompt": "how do I use fewer cores?", "stream": False}
    text: str = ask(f"{url}/api/generate", body | {"options": options})["response"]
    return text


@pytest.mark.long
def test_a_server_lets_a_cluster_compute_and_its_replicas_may_die(tmp_path: Path) -> None:
    tiny = Recipe(sources=[write_tiny_llama(tmp_path / "tiny.gguf")])
    for _ in create(Store(tmp_path), ModelName.parse("tiny"), tiny):
        pass
    with server(tmp_path, "--replicas", "2") as url:
        with pytest.raises(HTTPError, match="404"):
            ask(f"{url}/api/cluster/replace", {"model": "guide", "stream": False})
        first = generate(url, num_predict=30)
        replicas = wait_for_replicas(url, 2)
        # Their cores are shared with other models.
        assert ask(f"{url}/api/generate", {"model": "tiny", "prompt": "a", "stream": False})["done"]
        ask(f"{url}/api/generate", {"model": "tiny", "keep_alive": 0})
        for replica in replicas:
            os.kill(replica["pid"], signal.SIGKILL)
            assert generate(url, num_predict=30) == first
        again = wait_for_replicas(url, 2)
        assert {each["name"] for each in again} != {each["name"] for each in replicas}
        shown = chaski(url, "ps")
        assert len(re.findall(r"replica \w+ on .*, process \d+: 0 of \d+ places taken", shown)) == 2
        # Killed replicas count until their leases end.
        counted = r"^chaski-guide\S* +\S+:\d+ +2 +0.\d+ cores +wanted$"
        until = time.monotonic() + 60
        while True:
            nodes, applications = chaski(url, "cluster", "status").split("\n\n")
            if re.search(counted, applications, re.M):
                break
            assert time.monotonic() < until, applications
        status = nodes.splitlines()
        assert status[0].split() == [
            "NODE",
            "CPUS",
            "GPUS",
            "MEMORY",
            "MODEL",
            "REPLICA",
            "PROCESS",
            "PLACES",
        ]
        assert {line.split("guide:latest")[1].split()[0] for line in status[1:]} == {
            each["name"] for each in again
        }
        with ThreadPoolExecutor() as pool:
            replaced = pool.submit(chaski, url, "cluster", "replace", "guide")
            while not replaced.done():
                assert generate(url, num_predict=30) == first
            replaced.result()
        before, again = again, wait_for_replicas(url, 2)
        assert not {each["pid"] for each in again} & {each["pid"] for each in before}
        assert generate(url, num_predict=30) == first
        with urllib.request.urlopen(f"{url}/metrics") as reply:
            assert re.search(rb'chaski_node_replicas{model="guide:latest",node=".*"} 2.0', reply.read())
    for replica in again:
        with pytest.raises(ProcessLookupError):
            os.kill(replica["pid"], 0)


def wait_for_replicas(url: str, number: int) -> list[dict[str, Any]]:
    until = time.monotonic() + 60
    while True:
        (model,) = ask(f"{url}/api/ps")["models"]
        if len(model["replicas"]) == number:
            found: list[dict[str, Any]] = model["replicas"]
            return found
        assert time.monotonic() < until, model
        time.sleep(0.3)


@pytest.mark.long
def test_models_say_why_they_cannot_load_and_outlive_the_process_that_talks_to_ray(tmp_path: Path) -> None:
    """The local cluster ends with that process and is started again."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", llama__context_length=64)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(path.read_bytes()[:-1000])
    options: dict[str, Any] = {"num_predict": 8, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    cluster = Cluster(LOCAL, Bounds(), threads=1)
    try:
        unloadable = cluster.open_model(broken)
        with pytest.raises(GGUFError):
            unloadable.tokenize("a")
        unloadable.close()
        model = cluster.open_model(path)
        first = model.generate("0", **options)
        (before,) = model.replicas()
        os.kill(cluster._process._popen.pid, signal.SIGKILL)
        until = time.monotonic() + 60
        while [replica.name for replica in model.replicas()] in ([], [before.name]):
            assert time.monotonic() < until
            time.sleep(0.2)
        assert model.generate("0", **options).token_ids == first.token_ids
        model.close()
    finally:
        cluster.close()


def start_ray(mark: str, *options: str) -> None:
    """Start a node with one core, whose processes have the MARK."""
    ray = str(Path(sys.executable).with_name("ray"))
    common = ["--num-cpus", "1", "--object-store-memory", "80000000", "--disable-usage-stats"]
    environment = os.environ | {"RAY_AUTH_MODE": "token", MARK: mark}
    subprocess.run([ray, "start", *common, *options], env=environment, check=True, timeout=240)


@contextmanager
def head(folder: Path, *options: str, mark: str | None = None) -> Iterator[str]:
    """Run a separate cluster of one node; yield its address. Nodes with its mark end with it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mark = mark or secrets.token_hex(8)
    where = ["--node-ip-address", "127.0.0.1", "--port", str(port), "--temp-dir", str(folder)]
    try:
        start_ray(mark, "--head", *where, "--include-dashboard", "false", *options)
        yield f"127.0.0.1:{port}"
    finally:
        for pid, _ in marked_processes(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_a_node_with_too_little_memory_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with (
        TemporaryDirectory(prefix="ck-", dir="/tmp") as folder,  # paths of sockets are short
        head(Path(folder) / "ray", "--memory", "100000000") as at,
    ):
        path = write_tiny_llama(Path(folder) / "tiny.gguf", llama__context_length=1 << 20)
        cluster = Cluster(at, Bounds(), threads=1)
        try:
            small = cluster.open_model(path, context=64)
            assert small.generate("0", num_predict=2, ignore_eos=True).token_ids
            small.close()
            large = cluster.open_model(path, context=1 << 20)
            message = r"a replica needs [\d.]+ GB of memory, and Ray has 0.100 GB on "
            with pytest.raises(OutOfMemoryError, match=message):
                large.generate("0")
            large.close()
        finally:
            cluster.close()


def test_a_cluster_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chaski", "serve", "--cluster", "127.0.0.1:9", "--host", "127.0.0.1:0"],
        env=os.environ | {"OLLAMA_MODELS": str(tmp_path), "RAY_gcs_rpc_server_connect_timeout_s": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "the cluster at 127.0.0.1:9 cannot be used" in done.stderr
