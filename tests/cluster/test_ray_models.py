"""Several models on a real Ray cluster: shared cores and memory, orphans and lost nodes."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from chaski.cluster.autoscaling import Bounds
from chaski.cluster.connection import Cluster
from chaski.cluster.memory import host_bytes
from chaski.cluster.model import ClusterModel
from chaski.cluster.replica_options import ReplicaOptions
from chaski.cluster.shared_files import SharedFile
from chaski.errors import ClusterError, NoReplicaError
from tests.cluster.nodes import NEEDS_RAY, marked_processes
from tests.cluster.test_ray import head, start_ray
from tests.tiny_llama import write_tiny_llama

pytestmark = [NEEDS_RAY, pytest.mark.long]


@contextmanager
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="ck-", dir="/tmp") as name:  # paths of sockets are short
        yield Path(name)


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> float:
    """Wait, and return the seconds that it took."""
    begin = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin < seconds
        time.sleep(0.1)
    return time.monotonic() - begin


def generate(model: ClusterModel) -> tuple[int, ...]:
    return tuple(model.generate("0", num_predict=2, ignore_eos=True, temperature=0).token_ids)


def lend(model: ClusterModel) -> None:
    """Make a model idle, and close it when its place is needed, as a server does."""
    closing = threading.Thread(target=model.close)
    model.lend(lambda: 9.0, lambda: None if closing.is_alive() else closing.start())


def test_models_share_memory_and_a_killed_server_leaves_replicas_to_adopt_or_remove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with folder() as here:
        path = write_tiny_llama(here / "tiny.gguf", llama__context_length=1 << 17)
        made = ReplicaOptions({"model": SharedFile.of(path)}, {"threads": 1, "context": 1 << 17}, places=1)
        (needed,) = host_bytes(made) or ()
        with head(here / "ray", "--memory", str(needed * 3 // 2)) as at:
            cluster = Cluster(at, Bounds(), threads=1, models=2, server="first")
            first = cluster.open_model(path, context=1 << 17)
            expected = generate(first)
            second = cluster.open_model(path, context=(1 << 17) - 1)
            message = rf"no free memory on any node: {needed / 1e9:.3f} GB needed, {needed / 2e9:.3f} GB free"
            begin = time.monotonic()
            with pytest.raises(NoReplicaError, match=message):
                generate(second)
            second.close()
            assert time.monotonic() - begin < 30
            lend(first)
            second = cluster.open_model(path, context=(1 << 17) - 1)
            assert generate(second) == expected
            assert not first.is_running
            (replica,) = second.replicas()
            cluster._is_closed.set()  # the server is killed
            cluster._process._popen.kill()

            again = Cluster(at, Bounds(), threads=1, models=2, server="first")
            other = Cluster(at, Bounds(), threads=1, models=2, server="other")
            wait_until(lambda: [each.wanted_by for each in other.applications()] == [()])
            (orphan,) = other.applications()
            assert (orphan.model, orphan.replicas, orphan.cores) == ("tiny", 1, 0.5)
            assert orphan.memory > needed * 0.9
            adopted = again.open_model(path, context=(1 << 17) - 1)
            assert generate(adopted) == expected
            assert [each.name for each in adopted.replicas()] == [replica.name]
            wait_until(lambda: [each.wanted_by for each in other.applications()] == [("first",)])
            with pytest.raises(ClusterError, match=f"first wants {orphan.name}; unload the model there"):
                other.remove(orphan.name)
            again._is_closed.set()
            again._process._popen.kill()
            wait_until(lambda: [each.wanted_by for each in other.applications()] == [()])
            other.remove(orphan.name)
            wait_until(lambda: not other.applications())
            other.close()


def test_models_share_the_cores_of_nodes_and_outlive_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    mark = secrets.token_hex(8)
    with folder() as here, head(here / "ray", mark=mark) as at:
        path = write_tiny_llama(here / "tiny.gguf", llama__context_length=512)
        on_head = {pid for pid, words in marked_processes(mark) if words[0].endswith("/raylet")}
        start_ray(mark, "--address", at, "--node-ip-address", "127.0.0.2")
        raylets = {pid for pid, words in marked_processes(mark) if words[0].endswith("/raylet")}
        cluster = Cluster(at, Bounds(), threads=1)
        wait_until(lambda: sum(node.cpus for node in cluster.nodes()) == 2)
        one, two = (cluster.open_model(path, context=context) for context in (64, 128))
        expected = generate(one)
        assert generate(two) == expected
        wait_until(lambda: sum(node.free.cores for node in cluster.nodes()) == 0)
        three = cluster.open_model(path, context=256)
        with pytest.raises(NoReplicaError, match="no free cores on any node: 1 needed, 0 free"):
            generate(three)
        three.close()
        lend(two)
        three = cluster.open_model(path, context=256)
        assert generate(three) == expected
        assert (two.is_running, generate(one)) == (False, expected)

        for pid in raylets - on_head:
            os.kill(pid, signal.SIGKILL)
        for model in (one, three):
            with suppress(NoReplicaError):
                assert generate(model) == expected
        wait_until(lambda: len(one.replicas()) + len(three.replicas()) == 1, 90)
        lost = three if one.replicas() else one
        with pytest.raises(NoReplicaError, match="no free cores on any node: 1 needed, 0 free"):
            generate(lost)
        begin = time.monotonic()
        lost.close()
        assert time.monotonic() - begin < 60, "Serve does not wait for a replica that was never placed"
        cluster.close()
