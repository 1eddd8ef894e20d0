"""The SHA-256 of a file. That of a verified blob is known; others are remembered until the file changes."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from chaski.errors import StoreError
from chaski.regular_files import open_regular
from chaski.store.store import Store
from chaski.store.verified import look, note_verified, verified_name, write_record

__all__ = ["file_digest"]

_BLOB = "sha256-"
_PIECE = 1 << 20


class _Record(Struct, frozen=True):
    """A file's inode, size and dates when its content had the digest."""

    seen: tuple[int, int, int, int]
    sha256: str


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises StoreError for a file that cannot be read."""
    try:
        real = Path(os.path.realpath(path))
        if (name := verified_name(real)) is not None:
            return name.removeprefix(_BLOB).partition("+")[0]
        before = real.stat()
        if (record := _read(real)) is not None and record.seen == look(before):
            return record.sha256
        with open_regular(real) as file:
            found = _hashed(file)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from None
    if real.name == _BLOB + found:
        note_verified(real, before)
    else:
        _write(real, _Record(look(before), found))
    return found


def _hashed(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while piece := file.read(_PIECE):
        found.update(piece)
    return found.hexdigest()


def _place(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    return Store.default().root / "chaski" / "digests" / name


def _read(path: Path) -> _Record | None:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_place(path).read_bytes(), type=_Record)
    return None


def _write(path: Path, record: _Record) -> None:
    """Remember a digest. Nothing is remembered if the store is not writable."""
    with suppress(OSError):
        write_record(_place(path), record)
