"""A drained node: its replica moves to another node, and no answer is lost.

Needs root, Linux and Ray.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.cluster.autoscaling import Bounds
from chaski.cluster.connection import Cluster
from chaski.errors import ClusterError
from chaski.formats.quant import QuantType
from tests.cluster.nodes import NEEDS_RAY, Nodes
from tests.tiny_llama import write_tiny_llama

pytestmark = [
    NEEDS_RAY,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip"),
]
LONG: dict[str, Any] = {"num_predict": 1500, "temperature": 0, "ignore_eos": True, "num_keep": 8}


def wait_until(is_so: Callable[[], bool], seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_replica_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=2048)
    with chaski.load(path, threads=1, context=1024) as alone:
        expected = alone.generate("story", **LONG)
    with (
        closing(Nodes(2)) as nodes,
        closing(Cluster(nodes.address, Bounds(1, 1), threads=1)) as cluster,
        ThreadPoolExecutor(1) as threads,
        closing(cluster.open_model(path, parallel=2, context=1024)) as model,
    ):
        wait_until(lambda: sum(node.cpus > 0 for node in cluster.nodes()) == 2)
        with pytest.raises(ClusterError, match="no node has the name or address 'nowhere': the cluster has"):
            cluster.drain("nowhere")
        model.tokenize("loads it")
        (old,) = model.replicas()
        answer = threads.submit(model.generate, "story", **LONG)
        wait_until(lambda: any(replica.answers for replica in model.replicas()))
        assert cluster.drain(old.node).label == old.node
        found = answer.result(timeout=120)
        assert (found.text, found.token_ids) == (expected.text, expected.token_ids)
        wait_until(lambda: [replica.node for replica in model.replicas()] not in ([], [old.node]))
        wait_until(lambda: len(model.replicas()) == 1)
        assert model.replicas()[0].node != old.node
        assert model.generate("story", **LONG).token_ids == expected.token_ids
