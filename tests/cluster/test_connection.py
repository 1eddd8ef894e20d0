"""The connection of a server to Ray, and its errors. Needs no Ray."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chaski.cluster.autoscaling import Bounds
from chaski.cluster.connection import LOCAL, Cluster
from chaski.errors import ClusterError, MissingPackageError


def test_where_nobody_listens_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ClusterError, match=rf"127.0.0.1:{port} .*nobody takes connections there"):
        Cluster(f"127.0.0.1:{port}", Bounds())
    with pytest.raises(ClusterError, match="nobody takes connections there"):
        Cluster("127.0.0.1:99999", Bounds())


def test_a_missing_ray_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('No module named ray')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackageError, match=r"package ray\[serve\]; .*pip install 'chaski-llm\[cluster\]'$"
    ):
        Cluster(LOCAL, Bounds())


def test_a_process_that_ends_at_once_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("import os; os._exit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ClusterError, match="the process that talks to Ray has ended"):
        Cluster(LOCAL, Bounds())


def test_the_socket_to_ray_is_no_standard_stream(tmp_path: Path) -> None:
    """Otherwise, without standard streams, the socket would become one and receive Ray's log."""
    program = (
        "import os, sys; os.closerange(0, 3)\n"
        "from chaski.cluster import connection\n"
        "def popen(command, pass_fds, **options):\n"
        "    open(sys.argv[1], 'w').write(str(min(pass_fds)))\n"
        "    os._exit(0)\n"
        "connection.subprocess.Popen = popen\n"
        "connection.Cluster(connection.LOCAL, None)"
    )
    written = tmp_path / "descriptor"
    subprocess.run([sys.executable, "-c", program, written], timeout=60)
    assert int(written.read_text()) > 2


NODES = [
    {"name": name, "address": address, "cpus": cpus, "memory": 0, "gpus": 0, "gpu_memory": 0}
    for name, address, cpus in (("head", "10.0.0.1", 0), ("box", "10.0.0.2", 4), ("box", "10.0.0.3", 4))
]
RAY_PROCESS = """
import json, socket, sys
end = socket.socket(fileno=int(sys.argv[-1]))
lines = end.makefile("rw")
def say(said):
    lines.write(json.dumps(said) + chr(10))
    lines.flush()
lines.readline()
say({"key": "00" * 32, "nodes": NODES})
for line in lines:
    told = json.loads(line)
    if told.get("do") == "drain":
        refusal = "Ray does not drain it" if told["to"].endswith("2)") else None
        say({"did": "drain", "to": told["to"], "refusal": refusal})
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Connect to a replacement for Ray's process."""
    program = tmp_path / "ray_process.py"
    program.write_text(f"NODES = {NODES!r}\n{RAY_PROCESS}")
    run = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return run([sys.executable, str(program), command[-1]], **options)

    monkeypatch.setattr("chaski.cluster.connection.subprocess.Popen", popen)
    with closing(Cluster(LOCAL, Bounds())) as cluster:
        yield cluster


def test_a_head_without_news_of_nodes_or_replicas_is_a_problem(cluster: Cluster) -> None:
    """Replicas register in an actor that may outlive the head, so news of them alone are not enough."""
    assert cluster.problem() is None
    cluster._looked_at -= 20
    cluster._take({"members": {}, "serial": 0})
    assert str(cluster.problem()).startswith("the cluster's head has not been reached for 2")
    cluster._take({"nodes": NODES})
    assert cluster.problem() is None
    cluster._heard_at -= 20
    assert cluster.problem() is not None


def test_nodes_are_drained_by_name_or_address(cluster: Cluster) -> None:
    """The replacement for Ray's process refuses one of the nodes."""
    assert cluster.drain("10.0.0.3").label == "box (10.0.0.3)"
    assert cluster.drain("box (10.0.0.3)").label == "box (10.0.0.3)"
    with pytest.raises(ClusterError, match="Ray does not drain it"):
        cluster.drain("10.0.0.2")
    with pytest.raises(ClusterError, match=r"2 nodes have the name or address 'box': .* box \(10.0.0.2\)"):
        cluster.drain("box")
    with pytest.raises(ClusterError, match="no node has the name or address 'nowhere'"):
        cluster.drain("nowhere")
    cluster._nodes = [node for node in cluster.nodes() if node.address != "10.0.0.2"]
    with pytest.raises(ClusterError, match=r"no other node than box \(10.0.0.3\) has cores"):
        cluster.drain("10.0.0.3")
