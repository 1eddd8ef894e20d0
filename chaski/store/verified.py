"""Records of verified blobs: the state of a blob's file when its content matched its name.

A blob's name implies its content, but a disk or another program may change the bytes later. Code that stores
results derived from a blob uses `verified_name` as key. The name stays the same while the file is untouched,
and changes when the file is replaced, because results from the earlier file may be wrong.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = ["content_identity", "look", "note_verified", "verified_name", "write_record"]

_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_FOLDER = Path("chaski", "verified")


class _Record(Struct, frozen=True):
    """A verified file: its inode, size and dates, and the number of earlier files with its name."""

    seen: tuple[int, int, int, int]
    replaced: int = 0


def note_verified(path: Path, seen: os.stat_result | None = None) -> None:
    """Record that the content of a blob has the digest of its name.

    seen: the file's state before its content was read; None for the current state. Nothing is recorded if the
    store is not writable.
    """
    with suppress(OSError):
        now = look(path.stat())
        before = _read(path)
        if (seen is not None and look(seen) != now) or (before is not None and before.seen == now):
            return
        record = _Record(now, 0 if before is None else before.replaced + 1)
        write_record(_place(path), record)


def write_record(path: Path, record: Struct) -> None:
    """Write the JSON of a record to a file, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{secrets.token_hex(8)}.tmp")
    try:
        unfinished.write_bytes(msgspec.json.encode(record))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def verified_name(path: Path) -> str | None:
    """Return a name for a blob's content, equal on all machines unless a file was damaged and replaced.

    Return None for a file that is not a blob, was never verified, or has changed since.
    """
    if not _BLOB.fullmatch(path.name):
        return None
    record = _read(path)
    if record is None or record.seen != look(path.stat()):
        return None
    return f"{path.name}+{record.replaced}" if record.replaced else path.name


def content_identity(path: Path) -> tuple[object, ...]:
    """Return values that change with the bytes of a file: its verified name, or its inode, size and dates.

    Raises OSError.
    """
    path = Path(os.path.realpath(path))
    stat = path.stat()
    if (name := verified_name(path)) is not None:
        return name, stat.st_size
    return look(stat)


def look(stat: os.stat_result) -> tuple[int, int, int, int]:
    """Return what changes when the bytes of a file are written: its inode, size and dates."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _place(blob: Path) -> Path:
    return blob.parent.parent / _FOLDER / blob.name


def _read(blob: Path) -> _Record | None:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_place(blob).read_bytes(), type=_Record)
    return None
