"""Push and pull with a real registry server: Debian's docker-registry, started here."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.errors import ModelNotFoundError
from chaski.names import ModelName
from chaski.store.download import Pace
from chaski.store.http import Access
from chaski.store.manifest import CONFIG, Manifest, ManifestLayer, media_type
from chaski.store.pull import pull
from chaski.store.push import push
from chaski.store.store import Store
from tests.store.stores import assert_valid

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
]

ACCESS = Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}))
PACE = Pace(connections=4, min_part_bytes=1_000_000, send_bytes=3_000_000)
WEIGHTS = random.Random(5).randbytes(20_000_000)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """Run a registry with an empty folder on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    config = tmp_path / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{host}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: {tmp_path / 'registry'}}}}}\n"
    )
    quiet = subprocess.DEVNULL
    with subprocess.Popen(["docker-registry", "serve", str(config)], stdout=quiet, stderr=quiet) as server:
        try:
            _wait_for(host)
            yield host
        finally:
            server.kill()


def _wait_for(host: str) -> None:
    address, _, port = host.partition(":")
    for _ in range(100):
        try:
            socket.create_connection((address, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the registry did not start")


def put(store: Store, name: ModelName, weights: bytes, source: str | None = None) -> None:
    with store.adding():
        layers = [(media_type("model"), weights), (media_type("system"), b"be brief"), (CONFIG, b"{}")]
        *rest, config = [
            ManifestLayer(kind, store.blobs.add(data), len(data), source) for kind, data in layers
        ]
        store.put(name, Manifest(ManifestLayer(CONFIG, config.digest, config.size), tuple(rest)).encode())


def test_there_and_back(host: str, tmp_path: Path) -> None:
    name = ModelName.parse(f"http://{host}/me/model:1")
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    put(here, name, WEIGHTS)
    list(push(here, name, ACCESS, PACE))
    events = list(pull(there, name, ACCESS, PACE))
    assert events[-1].status == "success"
    assert there.entry(name).digest == here.entry(name).digest
    assert there.blobs.read(there.entry(name).manifest.layers[0].digest) == WEIGHTS
    assert_valid(there)
    with pytest.raises(ModelNotFoundError):
        list(pull(there, ModelName.parse(f"http://{host}/me/none"), ACCESS, PACE))


def test_layers_are_taken_over_from_another_model(host: str, tmp_path: Path) -> None:
    first, second = (ModelName.parse(f"http://{host}/{text}") for text in ("library/base:1", "me/own:1"))
    store = Store(tmp_path / "here")
    put(store, first, WEIGHTS)
    list(push(store, first, ACCESS, PACE))
    put(store, second, WEIGHTS, source=str(first))
    events = list(push(store, second, ACCESS, PACE))
    steps = {event.completed for event in events if event.total == len(WEIGHTS)}
    assert steps == {None, len(WEIGHTS)}
    other = Store(tmp_path / "other")
    list(pull(other, second, ACCESS, PACE))
    assert_valid(other)
