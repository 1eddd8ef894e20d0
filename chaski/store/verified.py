"""Records of verified blobs: what the file of a blob looked like when its content had the digest of its name.

A name promises the content, but a disk or another program may change the bytes later. Code that keeps
something which depends on the bytes asks for `verified_name`: it holds while the file is untouched, and
it is another one after a file was replaced, since what was computed from the file before may be damaged.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = ["note_verified", "verified_name"]

_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_FOLDER = Path("chaski", "verified")


class _Record(Struct, frozen=True):
    """A verified file: its inode, size and dates, and how many other files had its name before it."""

    seen: tuple[int, int, int, int]
    replaced: int = 0


def note_verified(path: Path, seen: os.stat_result | None = None) -> None:
    """Record that the content of a blob has the digest of its name.

    seen: the file before its content was read; None for the file as it is now. A store that cannot be
    written gets no record.
    """
    with suppress(OSError):
        now = _look(path.stat())
        before = _read(path)
        if (seen is not None and _look(seen) != now) or (before is not None and before.seen == now):
            return
        record = _Record(now, 0 if before is None else before.replaced + 1)
        final = _place(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        unfinished = final.with_name(f"{secrets.token_hex(8)}.tmp")
        try:
            unfinished.write_bytes(msgspec.json.encode(record))
            os.replace(unfinished, final)
        finally:
            unfinished.unlink(missing_ok=True)


def verified_name(path: Path) -> str | None:
    """Return a name that stands for the content of a blob, the same on every machine while nothing was wrong.

    It is None for a file that is no blob, that was never verified, or that was touched since then.
    """
    if not _BLOB.fullmatch(path.name):
        return None
    record = _read(path)
    if record is None or record.seen != _look(path.stat()):
        return None
    return f"{path.name}+{record.replaced}" if record.replaced else path.name


def _look(stat: os.stat_result) -> tuple[int, int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _place(blob: Path) -> Path:
    return blob.parent.parent / _FOLDER / blob.name


def _read(blob: Path) -> _Record | None:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_place(blob).read_bytes(), type=_Record)
    return None
