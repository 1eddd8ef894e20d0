"""Unfinished downloads on disk: a sparse file `<blob>-partial`, and the progress of each part.

The format is Ollama's, so each program can resume a download of the other.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct

__all__ = ["Part", "PartialFile", "allocated", "forget_parts", "plan_parts"]

_MAX_PARTS = 100_000


class Part(Struct):
    """A range of a blob, and the number of its leading bytes that are on disk."""

    number: int
    offset: int
    size: int
    completed: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def is_complete(self) -> bool:
        return self.completed == self.size


def plan_parts(size: int, part_bytes: int) -> list[Part]:
    """Divide a blob into parts of at most `part_bytes`."""
    begins = range(0, size, part_bytes)
    return [Part(number, begin, min(part_bytes, size - begin)) for number, begin in enumerate(begins)]


def forget_parts(final: Path) -> None:
    """Delete the progress notes of a blob's parts, including notes left unfinished by a killed process."""
    for kind in ("-", "."):
        for path in final.parent.glob(f"{final.name}-partial{kind}*"):
            path.unlink(missing_ok=True)


def allocated(final: Path) -> int:
    """Return the disk space, in bytes, of the unfinished download of a blob."""
    with suppress(FileNotFoundError):
        return _partial_path(final).stat().st_blocks * 512
    return 0


def _partial_path(final: Path) -> Path:
    """Return the path of a blob's partial file."""
    return final.with_name(f"{final.name}-partial")


class PartialFile:
    """The partial file of a blob. One download at a time holds it (see `lock`) and writes several parts.

    The file stays open until every thread has closed it. Otherwise a late thread could write to a reused file
    descriptor.
    """

    def __init__(self, final: Path, size: int) -> None:
        self._final = final
        self.path = _partial_path(final)
        self.size = size
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o644)
        self._users = 1
        self._guard = Lock()

    def lock(self) -> bool:
        """Try to take the file; return False if another process holds it or has just finished it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._descriptor), self.path.lstat())
        except (BlockingIOError, FileNotFoundError):
            return False

    @property
    def allocated(self) -> int:
        """Return the disk space of the file, in bytes."""
        return allocated(self._final)

    def load(self, part_bytes: int) -> list[Part]:
        """Return the saved plan if it fits the blob's size, else a new plan with an empty file."""
        found = self._found()
        if found and os.fstat(self._descriptor).st_size == self.size:
            return found
        return self.reset(part_bytes)

    def reset(self, part_bytes: int) -> list[Part]:
        """Discard the plan and the file's content, and return a new plan."""
        for path in self._descriptions():
            path.unlink(missing_ok=True)
        os.ftruncate(self._descriptor, 0)
        os.ftruncate(self._descriptor, self.size)
        return plan_parts(self.size, part_bytes)

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._descriptor, view, offset)
            view, offset = view[done:], offset + done

    def save(self, part: Part) -> None:
        """Record the progress of a part durably: first its bytes, then the note. One thread per part."""
        os.fdatasync(self._descriptor)
        fields = {"N": part.number, "Offset": part.offset, "Size": part.size, "Completed": part.completed}
        aside = self.path.with_name(f"{self.path.name}.{part.number}")
        aside.write_text(json.dumps(fields))
        os.replace(aside, self.path.with_name(f"{self.path.name}-{part.number}"))

    def forget(self) -> None:
        """Delete the notes after the file has become a blob."""
        forget_parts(self._final)

    def discard(self) -> None:
        """Delete the file and its notes."""
        self.forget()
        self.path.unlink(missing_ok=True)

    def retain(self) -> None:
        """Register one more thread that uses the file. It must call `close` at the end."""
        with self._guard:
            self._users += 1

    def close(self) -> None:
        with self._guard:
            self._users -= 1
            if not self._users:
                os.close(self._descriptor)

    def _found(self) -> list[Part] | None:
        """Return the recorded parts if they cover the file without gaps, else None."""
        try:
            parts = sorted((_read(path) for path in self._descriptions()), key=lambda part: part.number)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        position = 0
        for number, part in enumerate(parts):
            if (part.number, part.offset) != (number, position) or not 0 <= part.completed <= part.size:
                return None
            position = part.end
        return parts if position == self.size and len(parts) < _MAX_PARTS else None

    def _descriptions(self) -> list[Path]:
        return list(self.path.parent.glob(f"{self.path.name}-*"))


def _read(path: Path) -> Part:
    found = json.loads(path.read_text())
    numbers = [found[key] for key in ("N", "Offset", "Size", "Completed")]
    if not all(type(number) is int for number in numbers):
        raise ValueError("a part is described by whole numbers")
    return Part(*numbers)
