"""Unfinished downloads on the disk: a sparse file `<blob>-partial`, and what is done of each part of it.

The files are Ollama's, so each of both goes on with what the other has begun.
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
    """A range of a blob and how many bytes of it, from its beginning on, are on the disk."""

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
    """Cut a blob into parts of at most that size."""
    begins = range(0, size, part_bytes)
    return [Part(number, begin, min(part_bytes, size - begin)) for number, begin in enumerate(begins)]


def forget_parts(final: Path) -> None:
    """Delete what notes there are of a blob's parts, also those that a killed process was just writing."""
    for kind in ("-", "."):
        for path in final.parent.glob(f"{final.name}-partial{kind}*"):
            path.unlink(missing_ok=True)


def allocated(final: Path) -> int:
    """Return the bytes of the disk that the unfinished download of a blob has taken so far."""
    with suppress(FileNotFoundError):
        return _partial_path(final).stat().st_blocks * 512
    return 0


def _partial_path(final: Path) -> Path:
    """Return the path of the file that a blob grows in."""
    return final.with_name(f"{final.name}-partial")


class PartialFile:
    """The file that a blob grows in. One download at a time holds it, see `lock`; parts are written at once.

    It stays open until everyone who uses it has closed it: a thread must never write to a file that is not
    this one any more.
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
        """Return whether the file is ours now: no other process holds it or has just finished it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(self._descriptor), self.path.lstat())
        except (BlockingIOError, FileNotFoundError):
            return False

    @property
    def allocated(self) -> int:
        """Bytes of the disk that the file has taken so far."""
        return allocated(self._final)

    def load(self, part_bytes: int) -> list[Part]:
        """Return the plan that was begun if it fits a blob of this size, else a new one and an empty file."""
        found = self._found()
        if found and os.fstat(self._descriptor).st_size == self.size:
            return found
        return self.reset(part_bytes)

    def reset(self, part_bytes: int) -> list[Part]:
        """Forget the plan and the file's content."""
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
        """Note durably how far a part is: first its bytes, then the note. By one thread a part."""
        os.fdatasync(self._descriptor)
        fields = {"N": part.number, "Offset": part.offset, "Size": part.size, "Completed": part.completed}
        aside = self.path.with_name(f"{self.path.name}.{part.number}")
        aside.write_text(json.dumps(fields))
        os.replace(aside, self.path.with_name(f"{self.path.name}-{part.number}"))

    def forget(self) -> None:
        """Delete the notes, when the file has become a blob."""
        forget_parts(self._final)

    def discard(self) -> None:
        """Delete all of it."""
        self.forget()
        self.path.unlink(missing_ok=True)

    def retain(self) -> None:
        """Let one more thread use the file; it calls `close` in the end."""
        with self._guard:
            self._users += 1

    def close(self) -> None:
        with self._guard:
            self._users -= 1
            if not self._users:
                os.close(self._descriptor)

    def _found(self) -> list[Part] | None:
        """The parts that are described, if they cover the file without gaps."""
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
