from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from chaski.errors import ModelNotFoundError, OptionError, StoreError
from chaski.names import ModelName
from chaski.store.manifest import Manifest
from chaski.store.store import Store
from chaski.store.verify import verify
from tests.store.stores import assert_valid, put_by_hand, snapshot

ONE, TWO = "registry.ollama.ai/library/one/latest", "hf.co/User/Two-GGUF/Q4_0"
LAYERS = {"model": b"weights", "template": b"{{ .Prompt }}"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Make a store with two models that share their weights."""
    put_by_hand(tmp_path, ONE, LAYERS)
    put_by_hand(tmp_path, TWO, {"model": b"weights", "system": b"be brief"})
    os.utime(tmp_path / "manifests" / ONE, (1_000_000_000, 1_000_000_000))
    return Store(tmp_path)


def contents(store: Store) -> set[bytes]:
    return {store.blobs.read(digest) for digest in store.blobs}


def age(store: Store) -> None:
    """Make all files of the store two hours old."""
    then = time.time() - 7200
    for path in store.blobs.folder.iterdir():
        os.utime(path, (then, then))


def test_models_are_listed_newest_first(store: Store) -> None:
    newest, oldest, guide = store.entries()
    assert guide.name.short == "guide:latest"
    assert newest.name == ModelName.parse("hf.co/User/Two-GGUF:Q4_0")
    assert oldest.name.short == "one:latest"
    assert oldest.modified == 1_000_000_000
    manifest = (store.root / "manifests" / ONE).read_bytes()
    assert oldest.digest.hex == hashlib.sha256(manifest).hexdigest()
    assert oldest.size == 7 + 13 + len(store.blobs.read(oldest.manifest.config.digest))


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("OLLAMA_MODELS", "~/models")
    assert Store.default().root == Path("/home/somebody/models")
    monkeypatch.delenv("OLLAMA_MODELS")
    assert Store.default().root == Path("/home/somebody/.ollama/models")


def test_looking_changes_nothing(store: Store) -> None:
    before = snapshot(store.root)
    store.entries()
    for entry in store.entries():
        assert store.entry(entry.name) == entry
        assert entry.bundled or all(store.blobs.is_intact(layer.digest) for layer in entry.manifest.blobs)
    with pytest.raises(ModelNotFoundError):
        store.entry(ModelName.parse("three"))
    assert snapshot(store.root) == before


def test_no_store_is_an_empty_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert [entry.name.short for entry in store.entries()] == ["guide:latest"]
    assert store.prune() == (0, 0)
    with pytest.raises(ModelNotFoundError, match=r"^model 'one' not found$"):
        store.remove(ModelName.parse("one"))
    assert not store.root.exists()


def test_letters_do_not_matter_and_those_on_the_disk_win(store: Store) -> None:
    asked = ModelName.parse("HF.co/user/two-gguf:q4_0")
    assert str(store.locate(asked)) == "hf.co/User/Two-GGUF:Q4_0"
    assert str(store.entry(asked).name) == "hf.co/User/Two-GGUF:Q4_0"
    store.copy(ModelName.parse("ONE"), ModelName.parse("HF.CO/USER/two-gguf:New"))
    assert [str(name) for name in store.names()][:2] == [
        "hf.co/User/Two-GGUF:New",
        "hf.co/User/Two-GGUF:Q4_0",
    ]
    store.remove(asked)
    assert store.locate(asked) is None


def test_a_copy_is_the_same_model(store: Store) -> None:
    one, copy = ModelName.parse("one"), ModelName.parse("me/copy:1")
    store.copy(one, copy)
    assert store.entry(copy).digest == store.entry(one).digest
    store.copy(ModelName.parse("hf.co/user/two-gguf:q4_0"), copy)
    assert store.entry(copy).digest != store.entry(one).digest
    assert_valid(store)


def test_a_bundled_model_is_a_source_of_copies_only(store: Store) -> None:
    guide, copy = ModelName.parse("GUIDE"), ModelName.parse("mine")
    before = snapshot(store.root)
    with pytest.raises(OptionError, match="'GUIDE' is a part of chaski and cannot be deleted"):
        store.remove(guide)
    assert snapshot(store.root) == before
    assert [finding.problem for finding in verify(store, [guide])] == [None]
    store.copy(guide, copy)
    assert store.entry(copy).digest == store.entry(guide).digest
    assert [layer.kind for layer in store.entry(copy).manifest.layers] == ["model", "params"]
    assert_valid(store)
    store.remove(copy)
    assert contents_by_name(store) == {Path(name).name for name in before if name.startswith("blobs/")}
    with pytest.raises(OptionError, match="'GUIDE' is a part of chaski; choose another name"):
        store.copy(ModelName.parse("one"), guide)
    # Another program may give a model this name. It hides the bundled one until it is removed.
    put_by_hand(store.root, "registry.ollama.ai/library/guide/latest", LAYERS)
    assert store.entry(guide).digest == store.entry(ModelName.parse("one")).digest
    assert len(store.entries()) == 3
    store.remove(guide)
    assert store.entry(guide).bundled is not None


def test_removing_takes_what_no_other_model_uses(store: Store) -> None:
    store.remove(ModelName.parse("one"))
    assert b"weights" in contents(store)
    assert b"{{ .Prompt }}" not in contents(store)
    assert not (store.root / "manifests/registry.ollama.ai").exists()
    assert_valid(store)
    store.remove(ModelName.parse("hf.co/user/two-gguf:q4_0"))
    assert contents(store) == set()


def test_a_model_that_is_removed_while_it_is_read_is_not_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, found = ModelName.parse("one"), store._in_folder

    def removed_by_another_process(name: ModelName) -> ModelName | None:
        place = found(name)
        (store.root / "manifests" / ONE).unlink(missing_ok=True)
        return place

    monkeypatch.setattr(store, "_in_folder", removed_by_another_process)
    with pytest.raises(ModelNotFoundError, match="model 'one' not found"):
        store.copy(one, ModelName.parse("three"))


def test_a_folder_that_another_process_removes_meanwhile_holds_no_model(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.listdir

    def removed(folder: Path) -> list[str]:
        shutil.rmtree(folder)
        return listed(folder)

    monkeypatch.setattr(os, "listdir", removed)
    with pytest.raises(ModelNotFoundError):
        store.entry(ModelName.parse("absent"))


def test_the_environment_can_keep_blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_NOPRUNE", "1")
    before = contents(store)
    store.remove(ModelName.parse("one"))
    assert contents(store) == before


def test_blobs_stay_while_somebody_adds(store: Store) -> None:
    before = contents(store)
    with store.adding():
        store.remove(ModelName.parse("one"))
        with pytest.raises(StoreError, match="another process is adding"):
            store.prune()
    assert contents(store) == before
    age(store)
    assert store.prune() == (1, 13)


def test_pruning_takes_old_files_that_no_model_uses(store: Store) -> None:
    old = {"sha256-" + "0" * 64: b"orphan", "sha256-" + "1" * 64 + "-partial": b"part", "notes.txt": b"?"}
    for name, data in old.items():
        (store.blobs.folder / name).write_bytes(data)
    before = contents_by_name(store)
    assert store.prune() == (0, 0)
    age(store)
    (store.blobs.folder / "sha256-abc").write_bytes(b"just begun")
    assert store.prune() == (3, 11)
    assert contents_by_name(store) == before - old.keys() | {"sha256-abc"}
    assert_valid(store)


def contents_by_name(store: Store) -> set[str]:
    return set(os.listdir(store.blobs.folder))


def test_a_damaged_manifest_is_left_out_and_protects_all_blobs(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    (store.root / "manifests" / ONE).write_bytes(b'{"schemaVersion": 2')
    with caplog.at_level(logging.WARNING):
        assert [entry.name.short for entry in store.entries()] == ["hf.co/User/Two-GGUF:Q4_0", "guide:latest"]
    assert "one:latest is left out: the manifest of one:latest is damaged" in caplog.text
    age(store)
    before = contents_by_name(store)
    with pytest.raises(StoreError, match="a manifest is damaged"):
        store.prune()
    store.remove(ModelName.parse("hf.co/User/Two-GGUF:Q4_0"))
    assert contents_by_name(store) == before
    store.remove(ModelName.parse("one"))
    store.prune()
    assert contents_by_name(store) == set()


def test_files_that_are_no_manifests_are_passed_over(store: Store) -> None:
    for name in (".DS_Store", "registry.ollama.ai/library/one/.hidden", "hf.co/User/Two-GGUF/a b"):
        (store.root / "manifests" / name).write_text("?")
    assert len(store.entries()) == 3


def test_a_manifest_needs_its_blobs(store: Store) -> None:
    data = (store.root / "manifests" / ONE).read_bytes()
    store.blobs.remove(Manifest.parse(data).layers[1].digest)
    with store.adding(), pytest.raises(StoreError, match="of three is missing"):
        store.put(ModelName.parse("three"), data)
    assert len(list(store.names())) == 2


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file")
    store = Store(tmp_path)
    with pytest.raises(StoreError, match=r"^the model store: cannot be written: ") as error, store.adding():
        pass
    assert str(tmp_path) not in str(error.value)
