from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.errors import AccessDeniedError, ModelNotFoundError, OptionError, RegistryError, StoreError
from chaski.names import ModelName
from chaski.store.download import Pace
from chaski.store.http import Access
from chaski.store.manifest import CONFIG, Manifest, ManifestLayer, media_type
from chaski.store.pull import pull
from chaski.store.push import push
from chaski.store.store import Store
from tests.store.fake_registry import FakeRegistry, Handler
from tests.store.stores import assert_valid

WEIGHTS = random.Random(2).randbytes(300_000)
LOCAL = Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}), stall_seconds=1.0)
PACE = Pace(connections=2, min_part_bytes=100_000, pause_seconds=0.001, send_bytes=70_000)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path, registry: FakeRegistry) -> Store:
    """Make a store with the model `me/model:1` of this registry."""
    store = Store(tmp_path / "models")
    with store.adding():
        layers = [(media_type("model"), WEIGHTS), (media_type("system"), b"be brief"), (CONFIG, b"{}")]
        *rest, config = [ManifestLayer(kind, store.blobs.add(data), len(data)) for kind, data in layers]
        store.put(registry.name(), Manifest(config, tuple(rest)).encode())
    return store


def test_a_model_goes_and_comes_back(store: Store, registry: FakeRegistry, tmp_path: Path) -> None:
    events = [event.status for event in push(store, registry.name(), LOCAL, PACE)]
    layers = store.entry(registry.name()).manifest.blobs
    expected = [f"pushing {layer.digest.short}" for layer in layers]
    assert list(dict.fromkeys(events)) == ["retrieving manifest", *expected, "pushing manifest", "success"]
    assert registry.manifests["me/model:1"] == store.manifest_bytes(registry.name())
    sizes = [int(headers["Content-Length"]) for method, _, headers in registry.requests if method == "PATCH"]
    assert sizes[:5] == [70_000] * 4 + [20_000]
    other = Store(tmp_path / "other")
    list(pull(other, registry.name(), LOCAL, PACE))
    assert other.entry(registry.name()).digest == store.entry(registry.name()).digest
    assert_valid(other)


def test_what_is_there_is_not_sent(store: Store, registry: FakeRegistry) -> None:
    list(push(store, registry.name(), LOCAL, PACE))
    registry.requests.clear()
    list(push(store, registry.name(), LOCAL, PACE))
    assert [method for method, _, _ in registry.requests] == ["HEAD"] * 3 + ["PUT"]


def test_a_cut_upload_goes_on(store: Store, registry: FakeRegistry) -> None:
    registry.upload_cuts.extend([10_000, 50_000, 1])
    list(push(store, registry.name(), LOCAL, PACE))
    assert WEIGHTS in registry.blobs.values()
    starts = [headers["Content-Range"] for method, _, headers in registry.requests if method == "PATCH"]
    assert starts[:3] == ["0-69999", "10000-79999", "60000-129999"]


def test_an_upload_that_never_goes_through(store: Store, registry: FakeRegistry) -> None:
    registry.upload_cuts.extend([0] * 100)
    with pytest.raises(RegistryError, match="max retries exceeded"):
        list(push(store, registry.name(), LOCAL, PACE))
    assert registry.manifests == {}


def test_layers_of_other_models_there_are_taken_over(store: Store, registry: FakeRegistry) -> None:
    entry = store.entry(registry.name())
    weights, system = entry.manifest.layers
    source = f"{registry.host}/library/base:1"
    moved = ManifestLayer(weights.media_type, weights.digest, weights.size, source)
    elsewhere = ManifestLayer(
        system.media_type, system.digest, system.size, "registry.ollama.ai/library/base:1"
    )
    with store.adding():
        store.put(registry.name(), Manifest(entry.manifest.config, (moved, elsewhere)).encode())
    list(push(store, registry.name(), LOCAL, PACE))
    begun = [path for method, path, _ in registry.requests if method == "POST"]
    assert [path.partition("?")[2] for path in begun] == [
        f"mount=sha256%3A{weights.digest.hex}&from=library%2Fbase",
        "",
        "",
    ]


def test_credentials_are_sent_with_each_request(store: Store, registry: FakeRegistry) -> None:
    registry.token = "secret"
    list(push(store, registry.name(), LOCAL, PACE))
    sent = [headers.get("Authorization") for _, path, headers in registry.requests if "/token" not in path]
    assert sent[0] is None
    assert set(sent[1:]) == {"Bearer secret"}


def test_who_may_not_push(store: Store, registry: FakeRegistry) -> None:
    registry.token = "secret"
    registry.realm = f"http://{registry.host}/nothing"
    with pytest.raises(AccessDeniedError, match="unauthorized: access denied"):
        list(push(store, registry.name(), LOCAL, PACE))


def test_only_what_is_here_can_be_pushed(store: Store, registry: FakeRegistry) -> None:
    with pytest.raises(ModelNotFoundError, match="not found"):
        list(push(store, ModelName.parse("none"), LOCAL, PACE))
    assert registry.requests == []


def test_a_bundled_model_is_copied_first(store: Store) -> None:
    with pytest.raises(OptionError, match="'guide' is a part of chaski; copy it"):
        list(push(store, ModelName.parse("guide"), LOCAL, PACE))


def test_the_progress_of_a_push(store: Store, registry: FakeRegistry) -> None:
    weights, system, config = store.entry(registry.name()).manifest.blobs
    registry.blobs[str(system.digest)] = b"be brief"
    expected: list[dict[str, object]] = [{"status": "retrieving manifest"}]
    for layer, steps in [
        (weights, (70_000, 140_000, 210_000, 280_000, 300_000, 300_000)),
        (system, (8,)),
        (config, (2, 2)),
    ]:
        fields = {"status": f"pushing {layer.digest.short}", "digest": str(layer.digest), "total": layer.size}
        expected += [fields, *({**fields, "completed": sent} for sent in steps)]
    expected += [{"status": "pushing manifest"}, {"status": "success"}]
    assert [event.fields() for event in push(store, registry.name(), LOCAL, PACE)] == expected


def test_pauses_grow_with_each_failure_in_a_row(
    store: Store, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    pace = Pace(tries=4, pause_seconds=0.5, send_bytes=150_000)
    registry.upload_cuts.extend([10, 10, 10])
    list(push(store, registry.name(), LOCAL, pace))
    assert pauses == [0.5, 1, 2]
    assert WEIGHTS in registry.blobs.values()

    registry.blobs.clear()
    pauses.clear()
    registry.upload_cuts.extend([0] * 9)
    with pytest.raises(RegistryError, match=rf"^max retries exceeded: {registry.host}"):
        list(push(store, registry.name(), LOCAL, pace))
    assert pauses == [0.5, 1, 2]
    assert len(registry.upload_cuts) == 9 - 4


def test_failures_before_progress_do_not_count(
    store: Store, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded, failures = Handler._upload, iter([1, 1, 0, 1, 1, 0] + [0] * 9)

    def upload(handler: Handler, name: str) -> None:
        if handler.command == "PATCH" and next(failures):
            handler._discard()
            handler.reply(503, b"")
        else:
            uploaded(handler, name)

    monkeypatch.setattr(Handler, "_upload", upload)
    pace = Pace(tries=3, pause_seconds=0.001, send_bytes=150_000)
    list(push(store, registry.name(), LOCAL, pace))
    assert WEIGHTS in registry.blobs.values()


def test_an_upload_that_the_registry_has_forgotten_begins_again(
    store: Store, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = Handler._upload

    def upload(handler: Handler, name: str) -> None:
        if handler.command == "GET":
            handler.reply(404, b"")
        else:
            uploaded(handler, name)

    monkeypatch.setattr(Handler, "_upload", upload)
    registry.upload_cuts.extend([10_000])
    list(push(store, registry.name(), LOCAL, PACE))
    assert WEIGHTS in registry.blobs.values()
    sent = [(method, headers.get("Content-Range")) for method, _, headers in registry.requests]
    assert sent[:5] == [
        ("HEAD", None),
        ("POST", None),
        ("PATCH", "0-69999"),
        ("GET", None),
        ("POST", None),
    ]
    assert sent[5] == ("PATCH", "0-69999")


def test_a_blob_that_another_program_cut_is_not_pushed(store: Store, registry: FakeRegistry) -> None:
    layer = store.entry(registry.name()).manifest.layers[0]
    store.blobs.path(layer.digest).write_bytes(WEIGHTS[:100_000])
    with pytest.raises(StoreError, match=r"^the model store: a blob cannot be read: it ends at byte 100000$"):
        list(push(store, registry.name(), LOCAL, PACE))
    assert registry.manifests == {}


def test_a_registry_must_confirm_each_step(
    store: Store, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = Handler._upload
    for method, reply, message in [
        ("POST", (202, {}), "did not say where to upload to"),
        ("POST", (200, {"Location": "/v2/x/blobs/uploads/u1"}), "answered 200"),
        ("PATCH", (200, {"Location": "/v2/x/blobs/uploads/u1"}), "answered 200"),
        ("PATCH", (202, {}), "did not say where to upload to"),
        ("PUT", (202, {}), "answered 202"),
    ]:

        def upload(
            handler: Handler,
            name: str,
            method: str = method,
            reply: tuple[int, dict[str, str]] = reply,
        ) -> None:
            if handler.command == method:
                handler._discard()
                handler.reply(reply[0], b"", reply[1])
            else:
                uploaded(handler, name)

        monkeypatch.setattr(Handler, "_upload", upload)
        with pytest.raises(RegistryError, match=rf"^{registry.host} {message}$"):
            list(push(store, registry.name(), LOCAL, PACE))
    assert registry.manifests == {}


def test_without_leave_nothing_is_sent(store: Store, registry: FakeRegistry) -> None:
    with pytest.raises(RegistryError, match="insecure protocol http"):
        list(push(store, registry.name()))
    with pytest.raises(RegistryError, match="has a private address"):
        list(push(store, registry.name(), Access(insecure=True)))
    assert registry.requests == []


def test_blobs_are_not_pruned_while_they_are_pushed(store: Store, registry: FakeRegistry) -> None:
    for event in push(store, registry.name(), LOCAL, PACE):
        if event.status.startswith("pushing"):
            with pytest.raises(StoreError, match="another process is adding"):
                store.prune()
    assert store.prune() == (0, 0)
