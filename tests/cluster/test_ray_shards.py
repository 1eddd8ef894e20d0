"""Replicas that several nodes compute together, on a real Ray cluster: placing, dying, continuing."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import chaski
from chaski.cluster.autoscaling import Bounds
from chaski.cluster.connection import LOCAL, Cluster
from chaski.cluster.memory import host_bytes
from chaski.cluster.model import ClusterModel
from chaski.cluster.replica_options import ReplicaOptions
from chaski.cluster.replicas import ReplicaState
from chaski.cluster.shared_files import SharedFile
from chaski.errors import GGUFError
from chaski.formats.quant import QuantType
from tests.cluster.nodes import NEEDS_RAY
from tests.cluster.test_ray import head, start_ray
from tests.tiny_llama import write_tiny_llama

pytestmark = [NEEDS_RAY, pytest.mark.long]

ANSWER: dict[str, Any] = {"num_predict": 400, "temperature": 1.0, "seed": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_llama(folder / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=2048)


@pytest.fixture(scope="module")
def alone(path: Path) -> tuple[str, list[int]]:
    """Return the model's answer on one machine."""
    with chaski.load(path, threads=1, context=1024) as llm:
        answer = llm.generate("once", **ANSWER)
    return answer.text, list(answer.token_ids)


@contextmanager
def cluster(address: str, split: str, shards: tuple[int, int] = (2, 2)) -> Iterator[Cluster]:
    opened = Cluster(address, Bounds(), threads=1, shards=shards, split=split)
    try:
        yield opened
    finally:
        opened.close()


def wait_for(found: Callable[[], Any], seconds: float = 90) -> Any:
    until = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < until
        time.sleep(0.2)
    return value


def the_replica(model: ClusterModel) -> ReplicaState:
    found: ReplicaState = wait_for(lambda: model.replicas())[0]
    return found


def answer_while(model: ClusterModel, kill: Callable[[], int]) -> tuple[str, list[int]]:
    """Return an answer during which the process that `kill` names is killed."""
    text, tokens = "", list[int]()
    is_killed = False
    for event in model.stream("once", **ANSWER):
        text, tokens = text + getattr(event, "text", ""), tokens + list(getattr(event, "token_ids", ()))
        if not is_killed and len(tokens) > 100:
            os.kill(kill(), signal.SIGKILL)
            is_killed = True
    assert is_killed
    return text, tokens


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize("split", ["layers", pytest.param("rows", marks=pytest.mark.slow)])
def test_a_shard_dies_in_the_middle_of_an_answer(
    path: Path, alone: tuple[str, list[int]], split: str
) -> None:
    """With a split by layers, another shard dies while no request runs."""
    with cluster(LOCAL, split) as machines:
        model = machines.open_model(path, context=1024)
        assert answer_while(model, lambda: the_replica(model).shards[1][1]) == alone
        second = the_replica(model)
        assert len({pid for _, pid in second.shards} | {second.pid}) == 3
        if split == "layers":
            os.kill(second.shards[0][1], signal.SIGKILL)
            wait_for(lambda: model.replicas() and model.replicas()[0].name != second.name)
            assert model.generate("once", num_predict=9, temperature=0.0).token_ids
        last = [pid for replica in (second, the_replica(model)) for _, pid in replica.shards]
        model.close()
    wait_for(lambda: not any(map(is_running, last)), 30)


@pytest.mark.slow
def test_a_replica_has_as_many_nodes_as_it_needs_and_waits_for_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node lacks memory for the whole model; with two nodes, each gets a part."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    options = ReplicaOptions(
        files={"model": SharedFile.of(path)}, options={"threads": 1, "context": 1024}, places=1
    )
    whole, halves = host_bytes(options), host_bytes(options, 2)
    assert whole is not None
    assert halves is not None
    memory = ["--memory", str((max(halves) + whole[0]) // 2)]
    mark = secrets.token_hex(8)
    broken = path.with_name("broken.gguf")
    broken.write_bytes(path.read_bytes()[:-1000])
    with (
        TemporaryDirectory(prefix="ck-", dir="/tmp") as folder,
        head(Path(folder) / "ray", *memory, mark=mark) as at,
        cluster(at, "layers", (1, 2)) as machines,
    ):
        model = machines.open_model(path, context=1024)
        time.sleep(3)
        assert model.replicas() == []
        start_ray(mark, "--address", at, "--node-ip-address", "127.0.0.2", *memory)
        assert model.generate("once", num_predict=9, ignore_eos=True).token_ids
        nodes = {node for node, _ in the_replica(model).shards}
        assert len(nodes) == 2
        assert any("127.0.0.2" in node for node in nodes)
        model.close()
        unloadable = machines.open_model(broken)
        with pytest.raises(GGUFError):
            unloadable.tokenize("a")
        unloadable.close()


@pytest.mark.slow
def test_replicas_take_gpus_where_there_are_any(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray assumes a GPU that does not exist: the test sees the reservation, and the processor computes."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with (
        TemporaryDirectory(prefix="ck-", dir="/tmp") as folder,
        head(Path(folder) / "ray", "--num-gpus", "1") as at,
        cluster(at, "layers", (1, 1)) as machines,
    ):
        (node,) = machines.nodes()
        assert node.gpus == 1
        assert node.memory > 0
        model = machines.open_model(path, context=1024)
        assert model.generate("once", num_predict=9, ignore_eos=True).token_ids
        assert visible_gpus(the_replica(model).pid) == "0"
        model.close()
        on_processor = machines.open_model(path, context=1024, num_gpu=0)
        assert on_processor.generate("once", num_predict=9, ignore_eos=True).token_ids
        assert visible_gpus(the_replica(on_processor).pid) == ""
        on_processor.close()


def visible_gpus(pid: int) -> str | None:
    """Return the visible GPUs of a replica's worker."""
    children = [
        word for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()
    ]
    (child,) = children
    words = Path(f"/proc/{child}/environ").read_text().split("\0")
    return dict(word.partition("=")[::2] for word in words).get("CUDA_VISIBLE_DEVICES")
