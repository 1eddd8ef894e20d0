from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaski.errors import DigestError, StoreError
from chaski.names import Digest
from chaski.store import blobs as module
from chaski.store.blobs import Blobs


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "models" / "blobs")


def test_bytes_go_in_and_come_out(blobs: Blobs) -> None:
    assert list(blobs) == []
    digest = blobs.add(b"hello")
    assert digest == digest_of(b"hello")
    assert blobs.path(digest).name == f"sha256-{digest.hex}"
    assert blobs.read(digest) == b"hello"
    assert blobs.size(digest) == 5
    assert list(blobs) == [digest]
    assert blobs.path(digest).stat().st_mode & 0o777 == 0o644
    assert blobs.remove(digest) == 5
    assert (blobs.size(digest), list(blobs)) == (None, [])


def test_only_the_expected_content_gets_the_name(blobs: Blobs) -> None:
    right, wrong = digest_of(b"ab"), digest_of(b"other")
    assert blobs.add_stream([b"a", b"b"], right) == right
    with pytest.raises(DigestError, match=f'digest mismatch, expected "{wrong}", got "{right}"'):
        blobs.add_stream([b"a", b"b"], wrong)
    assert os.listdir(blobs.folder) == [right.file_name]


def test_a_source_that_fails_leaves_nothing(blobs: Blobs) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blobs.add_stream(pieces())
    assert os.listdir(blobs.folder) == []


def test_a_file_is_added_and_stays_its_owners(blobs: Blobs, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"weights")
    (tmp_path / "link").symlink_to(source)
    for path in (source, source, tmp_path / "link"):
        digest = blobs.add_file(path)
        assert digest == digest_of(b"weights")
        stored = blobs.path(digest)
        assert not stored.is_symlink()
        assert stored.read_bytes() == b"weights"
        assert os.listdir(blobs.folder) == [digest.file_name]
    assert not stored.samefile(source)
    assert stored.stat().st_nlink == 1
    source.write_bytes(b"changed")
    assert blobs.is_intact(digest)


def test_a_file_is_linked_only_if_that_is_asked_for(blobs: Blobs, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"weights")
    (tmp_path / "link").symlink_to(source)
    for path in (source, source, tmp_path / "link"):
        digest = blobs.add_link(path)
        assert blobs.path(digest).samefile(source)
        assert os.listdir(blobs.folder) == [digest.file_name]


def test_a_file_of_another_file_system_is_copied(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(module, "clone_file", lambda source, path: False)
    monkeypatch.setattr(os, "link", refuse)
    source = tmp_path / "model.gguf"
    source.write_bytes(b"weights")
    stored = blobs.path(blobs.add_file(source))
    assert stored.read_bytes() == b"weights"
    assert not stored.samefile(source)
    with pytest.raises(StoreError, match=r"model.gguf cannot be added: Invalid cross-device link"):
        blobs.add_link(source)


def test_faults_are_found_and_name_no_path(blobs: Blobs) -> None:
    digest = blobs.add(b"hello")
    assert blobs.is_intact(digest)
    blobs.path(digest).write_bytes(b"Hello")
    assert not blobs.is_intact(digest)
    with pytest.raises(StoreError, match=f"^blob {digest.short} is damaged"):
        blobs.read(digest)
    with pytest.raises(StoreError) as missing:
        blobs.read(digest_of(b"none"))
    assert str(blobs.folder) not in str(missing.value)
    assert "is missing; pull or create its model again" in str(missing.value)


def test_other_files_are_no_blobs(blobs: Blobs) -> None:
    digest = blobs.add(b"hello")
    for name in (f"{digest.file_name}-partial", f"{digest.file_name}-partial-0", "sha256-12", "notes.txt"):
        (blobs.folder / name).touch()
    assert list(blobs) == [digest]
