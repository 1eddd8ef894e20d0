from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from chaski.errors import ModelNotFoundError, StoreError
from chaski.names import Digest, ModelName
from chaski.store.blobs import Blobs
from chaski.store.store import Store
from chaski.store.verified import verified_name
from chaski.store.verify import Finding, verify
from tests.store.stores import put_by_hand, snapshot

ONE, TWO = ModelName.parse("one"), ModelName.parse("two")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    library = "registry.ollama.ai/library"
    put_by_hand(tmp_path, f"{library}/one/latest", {"model": b"weights", "system": b"one"}, b'{"a":1}')
    put_by_hand(tmp_path, f"{library}/two/latest", {"model": b"weights", "system": b"two"}, b'{"a":2}')
    (tmp_path / "blobs/sha256-notes").touch()
    return Store(tmp_path)


def problems(store: Store, *names: ModelName) -> dict[bytes, str]:
    found = {}
    for finding in verify(store, names):
        if finding.problem and finding.digest:
            path = store.blobs.path(finding.digest)
            aside = path.with_name(f"{path.name}-damaged")
            assert finding.is_aside == (finding.problem != "missing")
            assert not path.exists()
            found[aside.read_bytes() if finding.is_aside else b""] = finding.problem
    return found


def test_a_store_without_faults(store: Store) -> None:
    before = snapshot(store.root)
    weights = store.blobs.path(store.entry(ONE).manifest.layers[0].digest)
    assert verified_name(weights) is None  # another program has added it
    findings = list(verify(store))
    assert verified_name(weights) == weights.name
    shutil.rmtree(store.root / "chaski")
    assert [finding.problem for finding in findings] == [None] * 5
    assert ("one:latest", "two:latest") in [finding.models for finding in findings]
    assert [len(list(verify(store, names))) for names in ([ONE], [ONE, TWO])] == [3, 5]
    shutil.rmtree(store.root / "chaski")
    assert snapshot(store.root) == before


def test_all_kinds_of_faults_are_found(store: Store) -> None:
    orphan = store.blobs.add(b"orphan")
    weights, system = store.entry(ONE).manifest.layers
    store.blobs.path(weights.digest).write_bytes(b"Weights")
    store.blobs.path(orphan).write_bytes(b"0rphan")
    store.blobs.path(store.entry(TWO).manifest.layers[1].digest).write_bytes(b"too long")
    store.blobs.remove(system.digest)
    damaged = "damaged: its content has another digest"
    with store.adding():
        assert not any(finding.is_aside for finding in verify(store))  # another process is repairing it
    assert problems(store, ONE) == {b"Weights": damaged, b"": "missing"}
    rest = {b"0rphan": damaged, b"too long": "8 bytes instead of 3", b"": "missing"}
    assert problems(store) == rest
    assert {finding.problem for finding in verify(store)} == {None, "missing"}


def test_a_blob_that_was_replaced_meanwhile_stays(store: Store) -> None:
    digest = store.entry(ONE).manifest.layers[0].digest
    path = store.blobs.path(digest)
    seen = path.stat()
    path.unlink()
    store.blobs.add(b"weights")
    assert not store.blobs.set_aside(digest, seen)
    assert store.blobs.is_intact(digest)
    assert store.blobs.set_aside(digest, path.stat())
    assert not store.blobs.set_aside(digest)


def test_models_that_are_removed_meanwhile_are_no_findings(store: Store) -> None:
    """They vanish before or while their files are read; missing blobs of other models still count."""
    store.blobs.remove(store.entry(TWO).manifest.layers[1].digest)
    names = store.names
    seen: list[str | None] = []

    def names_and_then_none() -> list[ModelName]:
        return [*names(), ModelName.parse("gone")]

    store.names = names_and_then_none  # type: ignore[method-assign, assignment]
    for finding in verify(store):
        if not seen:
            store.remove(ONE)
        seen.append(finding.problem)
        assert finding.problem is None or finding.models == ("two:latest",)
    assert seen.count("missing") == 1


def test_a_blob_that_vanishes_while_it_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(self: object, digest: Digest) -> bool:
        store.remove(ONE)
        store.remove(TWO)
        raise StoreError("blob cannot be read")

    monkeypatch.setattr(Blobs, "is_intact", vanish)
    assert [finding.problem for finding in verify(store)] == []


def test_a_store_of_somebody_else_is_only_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.entry(ONE).manifest.layers[0].digest
    store.blobs.path(digest).write_bytes(b"Weights")
    before = snapshot(store.root)

    def refuse(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "mkdir", refuse)
    (fault,) = [finding for finding in verify(store) if finding.problem]
    assert (fault.digest, fault.is_aside) == (digest, False)
    assert snapshot(store.root) == before


def test_a_damaged_manifest_is_a_finding(store: Store) -> None:
    (store.root / "manifests/registry.ollama.ai/library/one/latest").write_text("?")
    (finding,) = [finding for finding in verify(store) if finding.problem]
    assert (finding.digest, finding.models) == (None, ("one:latest",))
    assert "is damaged" in str(finding.problem)
    with pytest.raises(ModelNotFoundError):
        list(verify(store, [ModelName.parse("three")]))


def test_a_finding_says_what_where_and_whose(store: Store) -> None:
    weights, system = store.entry(ONE).manifest.layers
    other = store.entry(TWO).manifest.layers[1]
    store.blobs.path(weights.digest).write_bytes(b"Weights")
    store.blobs.path(system.digest).unlink()
    store.blobs.path(other.digest).write_bytes(b"two and more")
    assert {finding.digest: finding for finding in verify(store, [ONE, TWO]) if finding.problem} == {
        weights.digest: Finding(
            weights.digest, 7, "damaged: its content has another digest", ("one:latest", "two:latest"), True
        ),
        system.digest: Finding(system.digest, 0, "missing", ("one:latest",)),
        other.digest: Finding(other.digest, 12, "12 bytes instead of 3", ("two:latest",), True),
    }
    configs = [store.entry(name).manifest.config for name in (ONE, TWO)]
    for config, name in zip(configs, ("one:latest", "two:latest"), strict=True):
        assert Finding(config.digest, config.size, None, (name,)) in list(verify(store))


def test_bundled_models_are_checked_in_any_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = ModelName.parse("guide")
    whole, *rest = verify(store, [guide, ONE])
    weights = store.entry(guide).manifest.layers[0]
    assert whole == Finding(weights.digest, weights.size, None, ("guide:latest",))
    assert len(rest) == 3
    monkeypatch.setattr("chaski.store.verify.hash_file", lambda path: rest[0].digest)
    (damaged,) = verify(store, [guide])
    problem = "damaged: install chaski again"
    assert damaged == Finding(weights.digest, weights.size, problem, ("guide:latest",))


def test_faults_of_manifests_do_not_end_the_check(store: Store) -> None:
    before = {finding.digest for finding in verify(store)}
    path = store.root / "manifests/registry.ollama.ai/library/a/latest"
    path.parent.mkdir(parents=True)
    path.write_text("?")
    findings = list(verify(store))
    assert {finding.digest for finding in findings} == before | {None}
    assert (findings[0].digest, findings[0].size, findings[0].models) == (None, 0, ("a:latest",))
    assert str(findings[0].problem).startswith("the manifest of a:latest is damaged: ")


def test_a_blob_that_cannot_be_read_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.entry(ONE).manifest.layers[0].digest

    def refuse(path: Path) -> Digest:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("chaski.store.blobs.hash_file", refuse)
    with pytest.raises(
        StoreError,
        match=rf"^the model store: blob {digest.short} cannot be read: Input/output error$",
    ):
        list(verify(store, [ONE]))


def test_a_blob_that_is_repaired_while_it_is_checked_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.entry(ONE).manifest.layers[0].digest
    path = store.blobs.path(digest)
    path.write_bytes(b"Weights")
    is_intact = Blobs.is_intact

    def repaired_by_another_process(self: Blobs, checked: Digest) -> bool:
        found = is_intact(self, checked)
        if checked == digest:
            path.unlink()
            self.add(b"weights")
        return found

    monkeypatch.setattr(Blobs, "is_intact", repaired_by_another_process)
    (finding,) = [finding for finding in verify(store, [ONE]) if finding.problem]
    assert (finding.digest, finding.is_aside) == (digest, False)
    assert path.read_bytes() == b"weights"
