"""Saved states of conversations: private files that live and die with their models."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from chaski.errors import ModelNotFoundError, StoreError
from chaski.names import ModelName
from chaski.store.manifest import MAX_MANIFEST_BYTES
from chaski.store.store import Entry, Store
from tests.store.stores import put_by_hand

ONE, TWO = ModelName.parse("one"), ModelName.parse("hf.co/User/Two-GGUF:Q4_0")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    put_by_hand(tmp_path, "registry.ollama.ai/library/one/latest", {"model": b"weights"})
    put_by_hand(tmp_path, "hf.co/User/Two-GGUF/Q4_0", {"model": b"weights", "system": b"be brief"})
    return Store(tmp_path)


def saved(store: Store, name: ModelName, data: bytes = b"state") -> Path:
    path = store.make_state_path(name)
    path.write_bytes(data)
    return path


def test_only_the_owner_may_enter_the_folders_of_states(store: Store) -> None:
    old = os.umask(0)
    try:
        path = saved(store, ModelName.parse("hf.co/user/two-gguf:q4_0"))
    finally:
        os.umask(old)
    folder = store.root / "chaski" / "states"
    assert path == folder / "hf.co/User/Two-GGUF/Q4_0.state"
    assert store.state_path(TWO) == path
    assert {each.stat().st_mode & 0o777 for each in path.parents if each.is_relative_to(folder.parent)} == {
        0o700
    }
    assert store.make_state_path(TWO) == path
    assert path.read_bytes() == b"state"


def test_a_folder_that_cannot_be_made_is_named(store: Store) -> None:
    (store.root / "chaski").write_text("a file")
    with pytest.raises(
        StoreError, match=r"^the model store: the folder for the state of one cannot be made: "
    ):
        store.make_state_path(ONE)


def test_a_state_goes_with_its_model(store: Store) -> None:
    one, two = saved(store, ONE), saved(store, TWO)
    store.remove(ONE)
    assert (one.exists(), two.exists()) == (False, True)
    store.copy(TWO, ONE)
    one = saved(store, ONE)
    store.copy(TWO, ONE)
    assert (one.exists(), two.exists()) == (False, True)


def test_states_of_models_that_another_program_deleted_are_pruned(store: Store) -> None:
    one, two = saved(store, ONE, b"12345"), saved(store, TWO)
    (one.parent / "notes").write_text("no state")
    assert store.prune() == (0, 0)
    (store.root / "manifests/registry.ollama.ai/library/one/latest").unlink()
    assert store.prune() == (1, 5)
    assert (one.exists(), two.exists(), (one.parent / "notes").exists()) == (False, True, True)


@pytest.mark.parametrize(("age", "is_kept"), [(3590, True), (3610, False)])
def test_files_of_the_last_hour_may_still_be_written(store: Store, age: float, is_kept: bool) -> None:
    path = store.blobs.folder / "sha256-0123"
    path.write_bytes(b"12")
    (store.blobs.folder / "folder").mkdir()
    for each in (path, path.with_name("folder")):
        os.utime(each, (time.time() - age, time.time() - age))
    assert store.prune() == ((0, 0) if is_kept else (1, 2))
    assert path.exists() == is_kept
    assert path.with_name("folder").exists()


def test_the_longest_manifest(store: Store) -> None:
    path = store.root / "manifests/registry.ollama.ai/library/one/latest"
    text = path.read_text()
    path.write_text(text.ljust(MAX_MANIFEST_BYTES))
    assert store.entry(ONE).manifest.size > 0
    path.write_text(text.ljust(MAX_MANIFEST_BYTES + 1))
    with pytest.raises(StoreError, match=r"^the manifest of one is longer than 4194304 bytes$"):
        store.entry(ONE)


def test_errors_of_the_store_name_the_model(store: Store) -> None:
    path = store.root / "manifests/registry.ollama.ai/library/one/latest"
    text = path.read_text()
    path.write_text("?")
    with pytest.raises(StoreError, match=r"^the manifest of one is damaged: not a manifest of a model: "):
        store.entry(ONE)
    with pytest.raises(
        StoreError,
        match=r"^a manifest is damaged, so it is not known what is unused; see `chaski verify`$",
    ):
        store.prune()
    path.write_text(text)
    with (
        store.adding(),
        pytest.raises(StoreError, match=r"^another process is adding models; prune when it is done$"),
    ):
        store.prune()
    with pytest.raises(ModelNotFoundError, match=r"^model 'three' not found$"):
        store.copy(ModelName.parse("three"), ONE)


def test_folders_without_models_go_and_links_stay(store: Store) -> None:
    manifests = store.root / "manifests"
    (manifests / "host/me/empty").mkdir(parents=True)
    (store.root / "elsewhere").mkdir()
    (manifests / "linked").symlink_to(store.root / "elsewhere")
    store.remove(ONE)
    assert sorted(path.name for path in manifests.iterdir()) == ["hf.co", "linked"]
    assert (manifests / "hf.co/User/Two-GGUF/Q4_0").is_file()
    assert (store.root / "elsewhere").is_dir()


def test_a_put_takes_the_place_of_the_spelling_on_the_disk(store: Store) -> None:
    data = store.manifest_bytes(ONE)
    with store.adding():
        store.put(ModelName.parse("HF.co/USER/two-gguf:q4_0"), data)
    assert store.manifest_bytes(TWO) == data
    assert len(list(store.names())) == 2
    assert not [path for path in store.blobs.folder.iterdir() if len(path.name) != 71]


def test_a_model_that_another_process_removes_meanwhile_is_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store.entry

    def removed_by_another_process(name: ModelName) -> Entry:
        entry = found(name)
        (store.root / "manifests/hf.co/User/Two-GGUF/Q4_0").unlink(missing_ok=True)
        return entry

    monkeypatch.setattr(store, "entry", removed_by_another_process)
    store.remove(TWO)
    monkeypatch.undo()
    assert [name.short for name in store.names()] == ["one:latest"]
    assert b"be brief" not in {store.blobs.read(digest) for digest in store.blobs}


def test_files_that_another_program_moves_while_they_are_pruned(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ollama's server does not use the locks of the store."""
    listed, is_folder = Path.iterdir, Path.is_dir
    for name in ("sha256-1", "sha256-2", "sha256-3"):
        (store.blobs.folder / name).write_bytes(b"1234")
        os.utime(store.blobs.folder / name, (1, 1))

    def moved_after_listing(folder: Path) -> list[Path]:
        found = list(listed(folder))
        (store.blobs.folder / "sha256-1").unlink(missing_ok=True)
        return found

    def moved_before_deletion(path: Path) -> bool:
        if path.name == "sha256-2":
            path.unlink(missing_ok=True)
        return is_folder(path)

    monkeypatch.setattr(Path, "iterdir", moved_after_listing)
    monkeypatch.setattr(Path, "is_dir", moved_before_deletion)
    assert store.prune() == (1, 4)
