"""Models that nodes without Ray compute: streams continue with the same bytes when processes die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.address import Address
from chaski.chat.events import Text
from chaski.cluster.nodes_model import NodesModel, nodes_model_opener
from chaski.errors import ModelNotFoundError
from chaski.ml.sharded.session import SILENCE
from chaski.names import ModelName
from chaski.runner.channels.messages import Describe, Info
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.cluster.shard_processes import ShardProcesses, shard_processes
from tests.server.running import running, wait_until
from tests.tiny_llama import write_tiny_llama

LONG: dict[str, Any] = {"num_predict": 100, "temperature": 1.0, "ignore_eos": True}
SIZES: dict[str, Any] = {"context": 512, "parallel": 4, "threads": 1}
PROMPTS = ["once", "upon", "a time", "there"]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_tiny_llama(path, layers=4, llama__context_length=2048)


@pytest.fixture(scope="module")
def alone(path: Path) -> list[str]:
    """The answers of a model alone."""
    with chaski.load(path, **SIZES) as llm:
        return [llm.generate(prompt, seed=7, **LONG).text for prompt in PROMPTS]


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Streams:
    """Streams of all prompts, each read by a thread."""

    def __init__(self, model: NodesModel) -> None:
        self.texts = [""] * len(PROMPTS)
        self.errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._read, args=(model, number)) for number in range(len(PROMPTS))
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, characters: int) -> None:
        """Wait until every stream has this many characters."""
        wait_until(lambda: self.errors or all(len(text) >= characters for text in self.texts))

    def end(self) -> list[str]:
        """Return the texts when all streams have ended."""
        for thread in self._threads:
            thread.join(120)
        assert not self.errors
        return self.texts

    def _read(self, model: NodesModel, number: int) -> None:
        try:
            for event in model.stream(PROMPTS[number], seed=7, **LONG):
                self.texts[number] += event.text if isinstance(event, Text) else ""
        except Exception as error:
            self.errors.append(error)


def opened(nodes: ShardProcesses, split: str, path: Path, undo: ExitStack, **changes: Any) -> NodesModel:
    open_model = nodes_model_opener(nodes.environment(split))
    model = open_model(path, progress=lambda share: None, **SIZES | changes)
    undo.callback(model.close)
    return model


def pid_of(model: NodesModel) -> int:
    """Return the process of the head."""
    worker = model._replica._worker
    assert worker is not None
    assert worker.pid is not None
    return worker.pid


@pytest.mark.parametrize(("split", "number"), [("rows", 2), ("rows", 4), ("layers", 2), ("layers", 4)])
def test_streams_continue_when_a_node_and_the_head_die(
    path: Path, alone: list[str], tmp_path: Path, undo: ExitStack, split: str, number: int
) -> None:
    nodes = undo.enter_context(shard_processes(number, tmp_path))
    model = opened(nodes, split, path, undo)
    streams = Streams(model)
    streams.wait_for(10)
    nodes.kill(number - 1)
    time.sleep(0.5)
    nodes.start(number - 1)
    streams.wait_for(40)
    os.kill(pid_of(model), signal.SIGKILL)
    assert streams.end() == alone


def test_a_model_continues_on_the_other_nodes_until_the_lost_one_is_back(
    path: Path, alone: list[str], tmp_path: Path, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaski.cluster.split_replica._AWAY", 1.0)
    nodes = undo.enter_context(shard_processes(3, tmp_path))
    model = opened(nodes, "layers", path, undo)
    streams = Streams(model)
    streams.wait_for(10)
    nodes.kill(1)
    assert streams.end() == alone
    assert len(devices_of(model)) == 2
    nodes.start(1)
    wait_until(lambda: len(devices_of(model)) == 3)
    assert model.generate(PROMPTS[0], seed=7, **LONG).text == alone[0]


def devices_of(model: NodesModel) -> set[str]:
    """Return the nodes that hold a part of the model."""
    peer = model._replica.any_peer()
    if peer is None:
        return set()
    found: list[Any] = []
    peer.start(Describe(), found.append)
    wait_until(lambda: found)
    return {part.device for part in found[0].memory.devices} if isinstance(found[0], Info) else set()


def test_a_hung_node_is_lost(path: Path, alone: list[str], tmp_path: Path, undo: ExitStack) -> None:
    nodes = undo.enter_context(shard_processes(2, tmp_path))
    streams = Streams(opened(nodes, "rows", path, undo))
    streams.wait_for(10)
    nodes.send(1, signal.SIGSTOP)
    time.sleep(SILENCE + 2)
    nodes.send(1, signal.SIGCONT)
    assert streams.end() == alone


def test_requests_wait_and_get_503_when_the_limit_passes(
    path: Path, tmp_path: Path, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = undo.enter_context(shard_processes(2, tmp_path))
    for _ in create(Store(tmp_path / "store"), ModelName.parse("tiny"), Recipe(sources=[path])):
        pass
    open_model = nodes_model_opener(nodes.environment("layers"))
    settings = Settings(address=Address("127.0.0.1", 0), context=256, parallel=2)
    server = undo.enter_context(running(settings, tmp_path / "store", open_model))
    body = {"model": "tiny", "prompt": "once", "stream": False, "options": {"num_predict": 5, "seed": 1}}
    expected = server.post("/api/generate", body).json["response"]
    (model,) = server.get("/api/live").json["models"]
    assert [replica["node"] for replica in model["replicas"]] == [", ".join(nodes.addresses)]
    nodes.kill(0)
    monkeypatch.setattr("chaski.cluster.answers._LONGEST_WAIT", 2.0)
    reply = server.post("/api/generate", body)
    assert reply.status == 503
    assert reply.headers["retry-after"] == "10"
    assert f"node {nodes.addresses[0]} cannot be reached" in reply.json["error"]
    monkeypatch.setattr("chaski.cluster.answers._LONGEST_WAIT", 120.0)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(server.post("/api/generate", body)))
    waiting.start()
    nodes.start(0)
    waiting.join(60)
    assert found[0].json["response"] == expected
    metrics = server.get("/metrics").body.decode()
    assert f'chaski_replica_running{{model="tiny:latest",node="{", ".join(nodes.addresses)}"' in metrics


def test_a_verdict_about_the_model_is_an_error_at_once(tmp_path: Path, undo: ExitStack) -> None:
    nodes = undo.enter_context(shard_processes(1, tmp_path))
    model = opened(nodes, "layers", tmp_path / "missing.gguf", undo)
    with pytest.raises(ModelNotFoundError):
        model.generate("once")
