"""Registries and networks with faults: temporary faults are retried, permanent ones are errors."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest

from chaski.errors import DigestError, ModelNotFoundError, RegistryError, StoreError
from chaski.names import Digest
from chaski.store import download
from chaski.store.download import Pace
from chaski.store.http import Access
from chaski.store.pull import pull
from chaski.store.store import Store
from tests.store import fake_registry
from tests.store.fake_registry import FakeRegistry, answer, cut_after, drip, stall_after
from tests.store.pulling import LAYERS, LOCAL, PACE, assert_pulled, pulled


@pytest.mark.parametrize(
    "notes",
    [
        {"0": '{"N":0,"Offset":0,"Size":1000000,"Completed":500000}'},  # missing bytes
        {"0": '{"N":0,"Offset":0,"Size":500000,"Completed":500000}'},  # a gap at the end
        {"0": '{"N":0,"Offset":5,"Size":999995,"Completed":5}'},
        {"0": '{"N":0,"Offset":0,"Size":1000000,"Completed":2000000}'},
        {"0": '{"N":0,"Offset":0,"Size":1000000,"Completed":-1}'},
        {"0": '{"N":0,"Offset":0'},
        {"0": '{"N":"0"}'},
        {"0": "[]"},
        {"7": '{"N":7,"Offset":0,"Size":1000000,"Completed":1000000}'},
    ],
)
def test_a_beginning_that_is_wrong_does_no_harm(
    store: Store, registry: FakeRegistry, notes: dict[str, str]
) -> None:
    data = registry.put(LAYERS)
    digest = Digest.parse(json.loads(data)["layers"][0]["digest"])
    partial = store.blobs.folder / f"{digest.file_name}-partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(1_000_000))
    for number, text in notes.items():
        Path(f"{partial}-{number}").write_text(text)
    pulled(store, registry)
    assert_pulled(store, registry, data)


@pytest.mark.parametrize(
    "fault",
    [
        stall_after(1000),
        stall_after(0),
        fake_registry.shifted,
        answer(503),
        answer(429),
        answer(206, {"Content-Range": "bytes 0-9/10"}, b"0123456789"),
        answer(206, {}, b"0123456789"),
        answer(206, {"Content-Range": "bytes " + "9" * 5000 + "-1/2"}, b"x"),
    ],
)
def test_faults_that_pass(store: Store, registry: FakeRegistry, fault: fake_registry.Fault) -> None:
    data = registry.put(LAYERS)
    registry.faults.extend([fault] * 3)
    pulled(store, registry)
    assert_pulled(store, registry, data)


@pytest.mark.parametrize("refused", [1, 2])
def test_threads_that_the_system_refuses(
    store: Store, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Fewer threads fetch the parts; without any, the pull fails and can be repeated."""
    data = registry.put(LAYERS)
    numbers = itertools.count(1)

    class Refusable(threading.Thread):
        def start(self) -> None:
            if next(numbers) == refused:
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(download, "Thread", Refusable)
    if refused == 1:
        with pytest.raises(StoreError, match="the system refuses a thread for the download"):
            pulled(store, registry)
    pulled(store, registry)
    assert_pulled(store, registry, data)


@pytest.mark.long
def test_a_slow_beginning_is_kept(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    registry.faults.extend([drip(0.05)] * 200)
    with pytest.raises(RegistryError, match="sends too slowly"):
        pulled(store, registry)
    registry.faults.clear()
    registry.requests.clear()
    pulled(store, registry)
    assert_pulled(store, registry, data)
    begins = {headers["Range"].partition("-")[0] for _, _, headers in registry.requests if "Range" in headers}
    assert not begins & {f"bytes={begin}" for begin in range(0, 1_000_000, 250_000)}


def test_time_between_requests_and_before_answers_is_not_slow(store: Store, registry: FakeRegistry) -> None:
    """The server waits nearly as long as allowed before each of many short answers."""
    data = registry.put({"model": b"small", **{f"license#{n}": b"text %d" % n for n in range(8)}})

    def late(handler: fake_registry.Handler, data: bytes, begin: int, end: int) -> None:
        handler.registry.released.wait(0.15)
        handler.serve(data, begin, end)

    registry.faults.extend([late] * 9)
    pulled(store, registry)
    assert_pulled(store, registry, data)


def test_a_server_without_ranges(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    registry.has_ranges = False
    pulled(store, registry)
    assert_pulled(store, registry, data)


def test_a_server_without_ranges_that_cuts(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    registry.has_ranges = False
    pace = Pace(connections=1, min_part_bytes=10_000_000, pause_seconds=0.001)
    registry.faults.extend([cut_after(300_000), cut_after(0)])
    pulled(store, registry, pace=pace)
    assert_pulled(store, registry, data)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (cut_after(0), RegistryError, "max retries exceeded: 127.0.0.1"),
        (answer(503), RegistryError, "max retries exceeded: 127.0.0.1:[0-9]+ answered 503"),
        (
            drip(0.05),
            RegistryError,
            r"max retries exceeded: 127.0.0.1:\d+ sends too slowly: \d+ bytes",
        ),
        (answer(404), RegistryError, "127.0.0.1:[0-9]+ answered 404"),
        (answer(500, body=b"secret"), RegistryError, "answered 500$"),
        (answer(200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"), RegistryError, "compressed its answer"),
        (answer(307, {"Location": "/v2/me/model/blobs/sha256:0"}), RegistryError, "answered 404"),
        (answer(302, {"Location": "file:///etc/passwd"}), RegistryError, "cannot be used"),
        (answer(302, {"Location": "http://user:pw@127.0.0.1/"}), RegistryError, "cannot be used"),
        (answer(302, {"Location": "http://127.0.0.2:1/"}), RegistryError, "127.0.0.2 has a private address"),
        (answer(302, {"Location": "http://169.254.169.254/"}), RegistryError, "has a private address"),
        (answer(302), RegistryError, "redirects without end"),
        (fake_registry.swapped, DigestError, "digest mismatch, file must be downloaded again"),
    ],
)
def test_faults_that_stay(
    store: Store, registry: FakeRegistry, fault: fake_registry.Fault, error: type[Exception], message: str
) -> None:
    registry.put(LAYERS)
    registry.faults.extend([fault] * 200)
    with pytest.raises(error, match=message):
        pulled(store, registry)
    assert list(store.names()) == []
    assert list(store.blobs) == []


def test_more_bytes_than_the_manifest_says(store: Store, registry: FakeRegistry) -> None:
    registry.put({"model": b"small"})
    registry.faults.extend([fake_registry.longer])
    with pytest.raises(RegistryError, match="more bytes than the manifest says"):
        pulled(store, registry)
    assert list(store.blobs) == []


def test_a_blob_that_is_no_blob_of_its_digest(store: Store, registry: FakeRegistry) -> None:
    """The registry's own blob is wrong; the local model does not change."""
    data = registry.put({"model": b"good"})
    pulled(store, registry)
    changed = registry.put({"model": b"best"})
    registry.blobs[json.loads(changed)["layers"][0]["digest"]] = b"evil"
    with pytest.raises(DigestError, match=r"again: want sha256:[0-9a-f]{64}, got sha256:"):
        pulled(store, registry)
    assert_pulled(store, registry, data)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"<html>", b'{"schemaVersion":2,"config":{"digest":"sha256:../../x","size":1},"layers":[]}'],
)
def test_what_is_no_manifest(store: Store, registry: FakeRegistry, data: bytes) -> None:
    registry.manifests["me/model:1"] = data
    with pytest.raises(RegistryError, match="pull model manifest: not a manifest of a model"):
        pulled(store, registry)
    assert list(store.names()) == []


def test_a_manifest_without_end(store: Store, registry: FakeRegistry) -> None:
    registry.manifests["me/model:1"] = b" " * (5 << 20)
    with pytest.raises(RegistryError, match="sent more than 4194304 bytes"):
        pulled(store, registry)


def test_no_such_model(store: Store, registry: FakeRegistry) -> None:
    with pytest.raises(ModelNotFoundError, match="pull model manifest: file does not exist"):
        pulled(store, registry)


def test_a_model_larger_than_the_disk(store: Store, registry: FakeRegistry) -> None:
    found = json.loads(registry.put(LAYERS))
    found["layers"][0]["size"] = 1 << 49
    registry.manifests["me/model:1"] = json.dumps(found).encode()
    with pytest.raises(StoreError, match="the disk has"):
        pulled(store, registry)


def test_two_pulls_of_one_model_share_the_work(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    first = pull(store, registry.name(), LOCAL, PACE)
    next(event for event in first if event.completed)
    second = pull(store, registry.name(), LOCAL, PACE)
    next(event for event in second if event.completed is not None)
    assert [event.status for event in first][-1] == "success"
    assert [event.status for event in second][-1] == "success"
    assert_pulled(store, registry, data)
    assert len([headers for _, _, headers in registry.requests if "Range" in headers]) == 4


def test_http_only_when_it_is_asked_for(store: Store, registry: FakeRegistry) -> None:
    registry.put(LAYERS)
    with pytest.raises(RegistryError, match=r"^insecure protocol http$"):
        pulled(store, registry, Access(private_hosts=LOCAL.private_hosts))


def test_private_addresses_only_when_they_are_named(store: Store, registry: FakeRegistry) -> None:
    registry.put(LAYERS)
    for hosts in ((), ("127.0.0.1:1",), ("models.lan",)):
        with pytest.raises(RegistryError, match=r"127\.0\.0\.1 has a private address"):
            pulled(store, registry, Access(insecure=True, private_hosts=frozenset(hosts)))
    assert registry.requests == []
    pulled(store, registry, Access(insecure=True, private_hosts=frozenset({registry.host})))


def test_pauses_of_a_pull_grow_with_each_failure(
    store: Store, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    threads: list[threading.Thread] = []

    class Recorded(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return self.is_set()

    class Noted(threading.Thread):
        def start(self) -> None:
            threads.append(self)
            super().start()

    monkeypatch.setattr(download, "Event", Recorded)
    monkeypatch.setattr(download, "Thread", Noted)
    data = registry.put({"model": b"small"})
    pace = Pace(tries=4, pause_seconds=0.5, report_seconds=0.001)
    registry.faults.extend([answer(503)] * 3)
    pulled(store, registry, pace=pace)
    assert_pulled(store, registry, data)
    assert pauses == [0.5, 1, 2]
    assert threads
    assert all(thread.daemon for thread in threads)  # a silent server does not delay the end of the process
    pauses.clear()
    store.remove(registry.name())
    registry.faults.extend([answer(503)] * 4)
    with pytest.raises(RegistryError, match=rf"^max retries exceeded: {registry.host} answered 503$"):
        pulled(store, registry, pace=pace)
    assert pauses == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 100), (800, 100), (801, 101), (1600, 200), (8000, 1000), (80_000, 1000)],
)
def test_the_size_of_parts(size: int, expected: int) -> None:
    assert Pace(connections=8, min_part_bytes=100, max_part_bytes=1000).part_bytes(size) == expected
