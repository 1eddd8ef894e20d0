"""A blob's name stands for its content only while the file is unchanged since its verification."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import Struct

from chaski.store.blobs import Blobs
from chaski.store.verified import content_identity, note_verified, verified_name, write_record

DATA = b"weights" * 1000


class Note(Struct):
    text: str


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "models" / "blobs")


def test_what_was_stored_is_known_by_its_name(blobs: Blobs, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    digest = blobs.add_link(source)
    path = blobs.path(digest)
    assert verified_name(path) == path.name
    source.unlink()  # which changes the date of the blob's inode
    assert verified_name(path) is None
    note_verified(path, path.stat())
    assert verified_name(path) is not None


def test_a_name_alone_is_no_proof(blobs: Blobs, tmp_path: Path) -> None:
    path = blobs.path(blobs.add(DATA))
    by_hand = tmp_path / "elsewhere" / path.name
    by_hand.parent.mkdir()
    by_hand.write_bytes(DATA)
    assert verified_name(by_hand) is None
    assert verified_name(tmp_path / "model.gguf") is None


def test_damage_and_repair_are_noticed(blobs: Blobs) -> None:
    digest = blobs.add(DATA)
    path = blobs.path(digest)
    with path.open("r+b") as file:
        file.write(b"W")
    assert verified_name(path) is None
    blobs.set_aside(digest)
    assert blobs.add(DATA) == digest
    repaired = verified_name(path)
    assert repaired not in (None, path.name)
    note_verified(path)
    assert verified_name(path) == repaired


def test_a_file_that_is_replaced_while_it_is_read_is_not_verified(blobs: Blobs) -> None:
    path = blobs.path(blobs.add(DATA))
    seen = path.stat()
    other = path.with_name("other")
    other.write_bytes(DATA[::-1])
    os.replace(other, path)
    note_verified(path, seen)
    assert verified_name(path) is None


def test_a_store_that_cannot_be_written_and_a_damaged_record(blobs: Blobs) -> None:
    digest = blobs.add(DATA)
    path = blobs.path(digest)
    record = blobs.folder.parent / "chaski" / "verified" / path.name
    record.write_bytes(b"{")
    assert verified_name(path) is None
    record.unlink()
    record.mkdir()
    note_verified(path)
    assert verified_name(path) is None


def test_a_record_is_written_whole_or_not_at_all(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = blobs.path(blobs.add(DATA))
    folder = blobs.folder.parent / "chaski" / "verified"
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    assert list(before) == [path.name]
    write_record(folder / "deep" / "note", Note("text"))
    assert (folder / "deep" / "note").read_text() == '{"text":"text"}'
    assert [each.name for each in (folder / "deep").iterdir()] == ["note"]
    os.utime(path, (1, 1))

    def fail(*paths: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    note_verified(path)
    assert sorted(each.name for each in folder.iterdir()) == ["deep", path.name]
    assert (folder / path.name).read_bytes() == before[path.name]


def test_the_identity_of_a_content(blobs: Blobs, tmp_path: Path) -> None:
    path, link = blobs.path(blobs.add(DATA)), tmp_path / "link"
    link.symlink_to(path)
    assert content_identity(path) == content_identity(link) == (path.name, len(DATA))
    os.utime(path, (1, 1))
    changed = content_identity(link)
    status = path.stat()
    assert changed == (status.st_ino, len(DATA), 10**9, status.st_ctime_ns)
    with pytest.raises(FileNotFoundError):
        content_identity(tmp_path / "none")
