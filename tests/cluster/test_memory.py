"""The memory that replicas reserve, and the errors if no node has enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaski.cluster.memory import NodeMemory, beside_gpus, host_bytes, shortage, too_few
from chaski.cluster.replica_options import ReplicaOptions
from chaski.cluster.shared_files import SharedFile
from chaski.ml.backend import HOST
from chaski.runner.loading.estimate import Estimate
from chaski.runner.loading.files import OpenedModel
from chaski.store.model import find_model
from tests.ml.sharded.members import running_nodes
from tests.tiny_llama import write_tiny_llama


def test_a_replica_reserves_what_show_tells(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", llama__context_length=256)
    options = ReplicaOptions(
        files={"model": SharedFile(str(path), path.stat().st_size)},
        options={"threads": 1, "context": 128, "parallel": 3},
        places=3,
    )
    needs = Estimate.of(OpenedModel.of(find_model(path)), 128, 3).needs
    assert host_bytes(options) == [needs.total[HOST] + needs.shared.get(HOST, 0)]


@pytest.mark.long
@pytest.mark.parametrize("split", ["layers", "rows"])
def test_a_replica_of_two_nodes_reserves_on_each_what_it_holds(tmp_path: Path, split: str) -> None:
    """It matches `show --memory --nodes`: layers split the cells in halves, and rows split weights, too."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", llama__context_length=256)
    options = ReplicaOptions(
        files={"model": SharedFile(str(path), path.stat().st_size)},
        options={"threads": 1, "context": 128},
        places=1,
        shards=(2, 2),
        split=split,
    )
    found = host_bytes(options, 2)
    with running_nodes(tmp_path, 2) as nodes, pytest.MonkeyPatch.context() as environment:
        nodes.use(environment, split, 2)
        addresses = [f"127.0.0.1:{server.port}" for server in nodes.servers]
        environment.setenv("CHASKI_NODES", ",".join(f"{address}=1" for address in addresses))
        needs = Estimate.of(OpenedModel.of(find_model(path)), 128, 1, backend="sharded").needs
        assert found == [needs.total[address] + needs.shared.get(address, 0) for address in addresses]


def test_nodes_of_a_split_replica_need_what_their_parts_take() -> None:
    nodes = [NodeMemory(f"n{number}", 4, 1_000_000_000 * (number + 1)) for number in range(3)]
    assert shortage([3_000_000_000, 1_000_000_000], 4, nodes) is None
    message = shortage([2_000_000_000, 2_500_000_000], 4, nodes)
    assert message is None
    message = shortage([1_500_000_000, 2_500_000_000, 1_200_000_000], 4, nodes)
    assert message is not None
    assert "needs 1.200 GB of memory on a node, and Ray has 1.000 GB on n0, no more on any other" in message
    assert shortage([9_000_000_000] * 4, 8, nodes) is None, "cores are missing, not memory"


def test_too_few_nodes_are_named() -> None:
    nodes = [NodeMemory("a", 4, 1), NodeMemory("b", 2, 1)]
    assert too_few(2, 2, nodes) is None
    assert too_few(1, 8, nodes) is None, "Ray waits for a node with so many cores"
    message = too_few(2, 4, nodes)
    assert message is not None
    assert "takes 2 nodes of 4 cores (--shards, CHASKI_THREADS), and the cluster has 1" in message


def test_what_gpus_hold_takes_no_memory_of_the_host() -> None:
    nodes = [
        NodeMemory("a", 4, 1_000_000_000, 2, 48_000_000_000),
        NodeMemory("b", 4, 2_000_000_000, 1, 16_000_000_000),
        NodeMemory("c", 4, 64_000_000_000),
    ]
    assert beside_gpus([20_000_000_000, 9_000_000_000], 1, nodes) == [4_000_000_000, 0]
    assert beside_gpus([20_000_000_000], 0.5, nodes) == [12_000_000_000]
    assert beside_gpus([20_000_000_000], 2, nodes) == [0], "both GPUs of a"
    assert beside_gpus([20_000_000_000], 0, nodes) == [20_000_000_000]
    assert beside_gpus([5], 1, [NodeMemory("d", 4, 9, 1)]) == [5], "nobody knows what that GPU holds"
    message = shortage([4_000_000_000], 4, nodes, 1)
    assert message is not None
    assert "needs 4.000 GB of memory beside its GPUs, and Ray has 2.000 GB on b" in message
    assert too_few(2, 4, nodes, 1) is None
    message = too_few(1, 4, nodes, 4)
    assert message is not None
    assert "takes 1 nodes of 4 cores and 4 GPUs (--shards, CHASKI_THREADS, --gpus)" in message


def test_what_cannot_be_read_reserves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    path.write_bytes(b"no model")
    options = ReplicaOptions(files={"model": SharedFile(str(path), 8)}, options={"threads": 1}, places=1)
    assert host_bytes(options) is None


def test_the_message_names_what_is_needed_and_the_node_that_has_most() -> None:
    nodes = [
        NodeMemory("head (10.0.0.1)", 0, 64_000_000_000),
        NodeMemory("small (10.0.0.2)", 4, 2_000_000_000),
        NodeMemory("large (10.0.0.3)", 4, 8_000_000_000),
    ]
    message = shortage([12_300_000_000], 2, nodes)
    assert message is not None
    assert message.startswith("a replica needs 12.300 GB of memory, and Ray has 8.000 GB on large (10.0.0.3)")
    assert shortage([8_000_000_000], 2, nodes) is None
    assert shortage([1], 8, nodes) is None, "cores are missing, not memory"
    assert shortage([1], 2, []) is None, "no node is known yet"


def test_it_needs_no_ray() -> None:
    code = "import sys, chaski.cluster.memory; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
