"""The SHA-256 of a file: read once, remembered, and read again after each change."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from chaski.errors import StoreError
from chaski.regular_files import open_regular
from chaski.store.blobs import Blobs
from chaski.store.file_digest import file_digest
from chaski.store.verified import verified_name

DATA = b"weights" * 1000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the files whose bytes are read."""
    names: list[str] = []

    def opened(path: Path) -> BinaryIO:
        names.append(path.name)
        return open_regular(path)

    monkeypatch.setattr("chaski.store.file_digest.open_regular", opened)
    return names


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def change(path: Path, data: bytes) -> None:
    """Write bytes at another time, however coarse the clock of the file system is."""
    path.write_bytes(data)
    os.utime(path, (1, 1))


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 5 << 19])
def test_all_bytes_of_a_file_count(root: Path, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "model.gguf").write_bytes(data)
    assert file_digest(tmp_path / "model.gguf") == sha256(data)


def test_a_file_is_read_once_until_it_changes(root: Path, tmp_path: Path, read: list[str]) -> None:
    path, link = tmp_path / "model.gguf", tmp_path / "link"
    path.write_bytes(DATA)
    link.symlink_to(path)
    assert [file_digest(each) for each in (path, link, path)] == [sha256(DATA)] * 3
    assert read == ["model.gguf"]
    change(path, DATA[::-1])
    assert [file_digest(each) for each in (link, path)] == [sha256(DATA[::-1])] * 2
    (tmp_path / "other.gguf").write_bytes(b"other")
    assert file_digest(tmp_path / "other.gguf") == sha256(b"other")
    assert file_digest(path) == sha256(DATA[::-1])
    assert read == ["model.gguf", "model.gguf", "other.gguf"]


def test_a_damaged_record_is_replaced(root: Path, tmp_path: Path, read: list[str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(DATA)
    file_digest(path)
    (record,) = (root / "chaski" / "digests").iterdir()
    record.write_bytes(b"{")
    assert [file_digest(path) for _ in range(2)] == [sha256(DATA)] * 2
    assert len(read) == 2


def test_the_name_of_a_verified_blob_is_enough(root: Path, read: list[str]) -> None:
    blobs = Blobs(root / "blobs")
    digest = blobs.add(DATA)
    path = blobs.path(digest)
    assert file_digest(path) == digest.hex
    change(path, DATA[::-1])
    assert file_digest(path) == sha256(DATA[::-1])
    blobs.set_aside(digest)
    blobs.add(DATA)
    read.clear()
    assert file_digest(path) == digest.hex
    assert read == []


def test_a_blob_of_another_program_is_verified_by_reading_it(root: Path, read: list[str]) -> None:
    path = root / "blobs" / f"sha256-{sha256(DATA)}"
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    assert [file_digest(path) for _ in range(2)] == [sha256(DATA)] * 2
    assert read == [path.name]
    assert verified_name(path) == path.name


def test_a_digest_that_cannot_be_remembered(root: Path, tmp_path: Path) -> None:
    root.write_text("a file, no folder")
    path = tmp_path / "model.gguf"
    path.write_bytes(DATA)
    assert [file_digest(path) for _ in range(2)] == [sha256(DATA)] * 2


def test_what_cannot_be_read_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"/none\.gguf: cannot be read: No such file or directory$"):
        file_digest(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match=r"/pipe: cannot be read: not a regular file$"):
        file_digest(tmp_path / "pipe")
