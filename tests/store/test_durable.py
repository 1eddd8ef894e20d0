"""Files that appear whole or not at all, and the notes of unfinished downloads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from chaski.errors import StoreError
from chaski.store.durable import make_folder, publish, scratch, store_errors
from chaski.store.parts import Part, PartialFile, allocated, forget_parts, plan_parts


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what is flushed and renamed, in order, by the names of the files."""
    made: list[str] = []
    fsync, fdatasync, replace, mkdir = os.fsync, os.fdatasync, os.replace, os.mkdir

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    def synced(descriptor: int) -> None:
        made.append(f"flush {name_of(descriptor)}")
        fsync(descriptor)

    def data_synced(descriptor: int) -> None:
        made.append(f"flush {name_of(descriptor)}")
        fdatasync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        made.append(f"rename {source.name} {target.name}")
        replace(source, target)

    def made_folder(path: Path, mode: int = 0o777) -> None:
        made.append(f"make {Path(path).name}")
        mkdir(path, mode)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "fdatasync", data_synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "mkdir", made_folder)
    return made


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "final").write_bytes(b"old")
    descriptors = os.listdir("/proc/self/fd")
    publish(tmp_path / "new", tmp_path / "final")
    assert calls == ["flush new", "rename new final", f"flush {tmp_path.name}"]
    assert os.listdir("/proc/self/fd") == descriptors
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert (tmp_path / "final").read_bytes() == b"new"


def test_each_new_folder_is_flushed_in_its_parent(tmp_path: Path, calls: list[str]) -> None:
    old = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert calls == ["make a", f"flush {tmp_path.name}", "make b", "flush a"]
    assert [path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")] == [0o755] * 2
    make_folder(tmp_path / "a" / "b")
    assert len(calls) == 4


def test_a_scratch_file_goes_away_unless_it_is_published(tmp_path: Path) -> None:
    with scratch(tmp_path) as first, scratch(tmp_path) as second:
        assert first != second
        assert {path.name[:7] for path in (first, second)} == {"sha256-"}
        assert {len(path.name) for path in (first, second)} == {23}  # so it is no name of a blob
        first.touch()
        second.touch()
        publish(second, tmp_path / "final")
    assert os.listdir(tmp_path) == ["final"]

    def fail(path: Path) -> None:
        path.touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), scratch(tmp_path) as path:
        fail(path)
    assert os.listdir(tmp_path) == ["final"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(28, "No space left on device", "/secret"),
            "the model store: it fails: No space left on device",
        ),
        (OSError("short read"), "the model store: it fails: short read"),
    ],
)
def test_errors_of_files_name_no_path(error: OSError, message: str) -> None:
    with pytest.raises(StoreError) as found, store_errors("it fails"):
        raise error
    assert str(found.value) == message
    assert found.value.__cause__ is error


# ---- unfinished downloads ----


@pytest.mark.parametrize(
    ("size", "part_bytes", "expected"),
    [
        (0, 10, []),
        (1, 10, [(0, 0, 1)]),
        (10, 10, [(0, 0, 10)]),
        (25, 10, [(0, 0, 10), (1, 10, 10), (2, 20, 5)]),
    ],
)
def test_parts_cover_a_blob(size: int, part_bytes: int, expected: list[tuple[int, int, int]]) -> None:
    assert plan_parts(size, part_bytes) == [Part(*fields) for fields in expected]


@pytest.fixture
def partial(tmp_path: Path) -> PartialFile:
    return PartialFile(tmp_path / "sha256-ab", 25)


def note(partial: PartialFile, number: int) -> Path:
    return partial.path.with_name(f"{partial.path.name}-{number}")


def test_the_bytes_of_a_part_are_on_the_disk_before_its_note(partial: PartialFile, calls: list[str]) -> None:
    _, part, _ = partial.load(10)
    partial.write(10, b"hello")
    part.completed = 5
    partial.save(part)
    assert calls == ["flush sha256-ab-partial", "rename sha256-ab-partial.1 sha256-ab-partial-1"]
    assert json.loads(note(partial, 1).read_text()) == {"N": 1, "Offset": 10, "Size": 10, "Completed": 5}
    assert partial.path.read_bytes() == bytes(10) + b"hello" + bytes(10)


def test_a_saved_plan_is_continued(partial: PartialFile, tmp_path: Path) -> None:
    parts = partial.load(10)
    parts[2].completed = 3
    for part in reversed(parts):
        partial.save(part)
    partial.write(20, b"abc")
    partial.close()
    assert allocated(tmp_path / "sha256-ab") == partial.path.stat().st_blocks * 512
    again = PartialFile(tmp_path / "sha256-ab", 25)
    assert again.allocated == allocated(tmp_path / "sha256-ab")
    assert again.load(7) == parts
    assert partial.path.read_bytes() == bytes(20) + b"abc" + bytes(2)
    note(partial, 1).unlink()
    assert again.load(25) == [Part(0, 0, 25)]
    assert partial.path.read_bytes() == bytes(25)
    assert [path.name for path in tmp_path.iterdir()] == ["sha256-ab-partial"]


@pytest.mark.parametrize("completed", [0, 10])
def test_a_whole_and_an_empty_part_are_continued(partial: PartialFile, completed: int) -> None:
    parts = partial.load(10)
    parts[0].completed = completed
    for part in parts:
        partial.save(part)
    assert partial.load(3) == parts
    assert parts[0].is_complete == (completed == 10)


def test_a_plan_for_another_size_is_discarded(partial: PartialFile, tmp_path: Path) -> None:
    for part in partial.load(10):
        partial.save(part)
    os.truncate(partial.path, 24)
    assert partial.load(25) == [Part(0, 0, 25)]
    assert partial.path.stat().st_size == 25


def test_only_notes_of_this_blob_are_deleted(partial: PartialFile, tmp_path: Path) -> None:
    kept = {
        "sha256-ab",
        "sha256-abc-partial-0",
        "sha256-ab-partial",
        "sha256-cd-partial-0",
        "sha256-ab-damaged",
    }
    for name in {*kept, "sha256-ab-partial-0", "sha256-ab-partial-12", "sha256-ab-partial.3"}:
        (tmp_path / name).touch()
    forget_parts(tmp_path / "sha256-ab")
    assert {path.name for path in tmp_path.iterdir()} == kept
    partial.discard()
    assert {path.name for path in tmp_path.iterdir()} == kept - {"sha256-ab-partial"}
    assert allocated(tmp_path / "sha256-ab") == 0
    partial.discard()


def test_one_download_holds_the_file(partial: PartialFile, tmp_path: Path) -> None:
    assert partial.lock()
    other = PartialFile(tmp_path / "sha256-ab", 25)
    assert not other.lock()
    partial.close()
    assert other.lock()
    other.path.unlink()
    assert not other.lock()  # finished by another process
    other.path.touch()
    assert not other.lock()  # and begun again by a third


def test_the_file_stays_open_until_its_last_user_has_closed_it(partial: PartialFile) -> None:
    partial.retain()
    partial.close()
    partial.write(0, b"late")
    partial.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        partial.write(0, b"too late")


def test_the_unfinished_file_is_never_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / "sha256-ab-partial").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        PartialFile(tmp_path / "sha256-ab", 25)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_the_unfinished_file_is_written_by_its_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        partial = PartialFile(tmp_path / "sha256-ab", 25)
    finally:
        os.umask(old)
    assert partial.path.stat().st_mode & 0o777 == 0o644


def test_bytes_that_the_system_takes_in_pieces(partial: PartialFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: pwrite(file, data[:3], offset))
    partial.load(25)
    partial.write(5, b"hello, world")
    assert partial.path.read_bytes() == bytes(5) + b"hello, world" + bytes(8)
