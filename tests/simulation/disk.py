"""The disk of simulated worlds: changes that fail, writes that are cut short, and cuts of power.

Files lie in a real folder. Every change below it goes through here: other threads may run before it, it may
fail, and a change that was not flushed may be undone by a cut of power. Times of files are those of the
virtual clock.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import importlib
import io
import itertools
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from chaski.runner.prefix import block_files
from tests.simulation.scheduler import SCHEDULER, Killed

__all__ = ["DISK", "Disk"]

_pyio: Any = importlib.import_module("_pyio")
_real: Any = type(
    "_Real", (), {name: staticmethod(getattr(os, name)) for name in dir(os) if callable(getattr(os, name))}
)
_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EMFILE)

Key = tuple[str, Any]


class _Change(NamedTuple):
    """A change that is not on the disk yet: the file or folder whose flush brings it there, and its undo."""

    key: Key
    undo: Callable[[], object]


class Disk:
    """The files below a folder. `fail` lets following changes fail, `cut_power` undoes those not flushed."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._begin_world(Path(), Random(0))

    def use(self, folder: Path, shadow: Path, random: Random) -> None:
        """Watch a folder from now on. `shadow` keeps what a cut of power may bring back."""
        self._folder = folder
        self._begin_world(shadow, random)

    def _begin_world(self, shadow: Path, random: Random) -> None:
        self._shadow = shadow
        self._random = random
        self._pending: list[_Change] = []
        self._open: dict[int, Path] = {}
        self._copies: dict[Any, int] = {}
        self._numbers = itertools.count()
        self._rate = 0.0
        self.num_failed = 0

    def fail(self, rate: float) -> None:
        """Let this share of all changes fail from now on."""
        self._rate = rate

    def rot(self, files: Iterable[Path], count: int) -> None:
        """Delete some of these files, or change a bit of them."""
        for path in self._random.choices(sorted(files), k=count):
            data = path.read_bytes() if path.exists() else b""
            if not data:
                continue
            _real.unlink(path)  # who has mapped the file sees no change
            if self._random.random() < 0.7:
                changed = bytearray(data)
                changed[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
                descriptor = _real.open(path, os.O_CREAT | os.O_WRONLY)
                _real.write(descriptor, changed)
                _real.close(descriptor)

    def leave(self) -> None:
        """Watch no folder any more."""
        self._forget()
        self._folder = None

    def cut_power(self) -> None:
        """Keep, of the changes to each file and folder, the flushed ones and some of the earliest others."""
        self._rate = 0.0
        lost: list[_Change] = []
        kept: dict[Key, int] = {}
        for key in dict.fromkeys(change.key for change in self._pending):
            count = sum(change.key == key for change in self._pending)
            kept[key] = self._random.randint(0, count)
        for change in self._pending:
            kept[change.key] -= 1
            if kept[change.key] < 0:
                lost.append(change)
        for change in reversed(lost):
            with suppress(OSError):
                change.undo()
        for descriptor in self._open:  # of processes that have ended
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._forget()

    def _forget(self) -> None:
        if self._folder is None:
            return
        for descriptor in self._copies.values():
            _real.close(descriptor)
        self._copies.clear()
        self._pending.clear()
        self._open.clear()

    def _inside(self, path: Any) -> Path | None:
        """Return a path below the folder, None for others."""
        if self._folder is None or isinstance(path, int):
            return None
        found = Path(os.fsdecode(path))
        return found if self._folder in found.parents else None

    def _begin(self) -> None:
        """Let others run before a change, and let the change fail as the seed decides."""
        if SCHEDULER.process.is_dead:
            raise Killed
        SCHEDULER.pause()
        if self._rate and SCHEDULER.current is not None and self._random.random() < self._rate:
            self.num_failed += 1
            number = self._random.choice(_ERRORS)
            raise OSError(number, os.strerror(number))

    def _note(self, key: Key, undo: Callable[[], object]) -> None:
        self._pending.append(_Change(key, undo))

    def _keep(self, path: Path) -> Path | None:
        """Return another name of an existing file, so that it can come back."""
        shadow = self._shadow / str(next(self._numbers))
        try:
            _real.link(path, shadow)
        except OSError:
            return None
        return shadow

    def _stamp(self, path: Path) -> None:
        """Give a file and its folder the virtual time."""
        now = int(SCHEDULER.wall * 1e9)
        for each in (path, path.parent):
            with suppress(OSError):
                _real.utime(each, ns=(now, now), follow_symlinks=False)

    def open(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        inside = self._inside(path)
        if inside is None or not flags & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):
            descriptor: int = _real.open(path, flags, *arguments, **options)
            if inside is not None:
                self._open[descriptor] = inside
            return descriptor
        is_new = bool(flags & os.O_CREAT) and not inside.exists()
        if is_new or flags & os.O_TRUNC:
            self._begin()
        descriptor = _real.open(path, flags, *arguments, **options)
        self._open[descriptor] = inside
        if is_new:
            self._note(("folder", str(inside.parent)), partial(_real.unlink, inside))
            self._stamp(inside)
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        path = self._open.get(descriptor)
        if path is None:
            count: int = _real.write(descriptor, data)
            return count
        data = self._begin_write(data)
        self._note_write(descriptor, len(data), os.lseek(descriptor, 0, os.SEEK_CUR))
        count = _real.write(descriptor, data)
        self._stamp(path)
        return count

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        path = self._open.get(descriptor)
        if path is not None:
            data = self._begin_write(data)
            self._note_write(descriptor, len(data), offset)
        count: int = _real.pwrite(descriptor, data, offset)
        if path is not None:
            self._stamp(path)
        return count

    def _begin_write(self, data: Any) -> Any:
        """Return the data or its beginning, as a disk may take it."""
        self._begin()
        size = len(data)
        if size > 1 and self._random.random() < 0.1:
            return memoryview(data).cast("B")[: self._random.randint(1, size)]
        return data

    def _note_write(self, descriptor: int, count: int, begin: int) -> None:
        status = os.fstat(descriptor)
        key = "file", status.st_ino
        if key not in self._copies:
            self._copies[key] = _real.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        copy = self._copies[key]
        before = os.pread(copy, count, begin)

        def undo() -> None:
            _real.pwrite(copy, before, begin)
            _real.ftruncate(copy, status.st_size)

        self._note(key, undo)

    def ftruncate(self, descriptor: int, length: int) -> None:
        if descriptor in self._open:
            self._begin()
            size = os.fstat(descriptor).st_size
            self._note_write(descriptor, size, 0)
        _real.ftruncate(descriptor, length)

    def fsync(self, descriptor: int) -> None:
        if descriptor not in self._open:
            return
        self._begin()
        status = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(status.st_mode)
        key = ("folder", str(self._open[descriptor])) if is_folder else ("file", status.st_ino)
        self._pending = [change for change in self._pending if change.key != key]

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        _real.close(descriptor)

    def replace(self, source: Any, target: Any, **options: Any) -> None:
        one, other = self._inside(source), self._inside(target)
        if one is None or other is None:
            _real.replace(source, target, **options)
            return
        self._begin()
        before = self._keep(other)
        _real.replace(source, target, **options)

        def undo() -> None:
            _real.rename(other, one)
            if before is not None:
                _real.link(before, other)

        self._note(("folder", str(other.parent)), undo)
        self._stamp(other)

    def unlink(self, path: Any, **options: Any) -> None:
        inside = self._inside(path)
        if inside is None or not inside.exists():
            _real.unlink(path, **options)
            return
        self._begin()
        before = self._keep(inside)
        _real.unlink(path, **options)
        if before is not None:
            self._note(("folder", str(inside.parent)), partial(_real.link, before, inside))
        self._stamp(inside)

    def link(self, source: Any, target: Any, **options: Any) -> None:
        inside = self._inside(target)
        if inside is not None:
            self._begin()
        _real.link(source, target, **options)
        if inside is not None:
            self._note(("folder", str(inside.parent)), partial(_real.unlink, inside))

    def mkdir(self, path: Any, *arguments: Any, **options: Any) -> None:
        inside = self._inside(path)
        if inside is not None and not inside.exists():
            self._begin()
        _real.mkdir(path, *arguments, **options)
        if inside is not None:
            self._note(("folder", str(inside.parent)), partial(_real.rmdir, inside))
            self._stamp(inside)

    def rmdir(self, path: Any, **options: Any) -> None:
        inside = self._inside(path)
        if inside is not None:
            self._begin()
        _real.rmdir(path, **options)
        if inside is not None:
            self._note(("folder", str(inside.parent)), partial(_real.mkdir, inside))

    def install(self) -> None:
        """Let every change of this process go through here. Files come from Python's own `_pyio`."""
        place: Any = os
        for name in (
            "open",
            "write",
            "pwrite",
            "ftruncate",
            "fsync",
            "close",
            "replace",
            "unlink",
            "link",
            "mkdir",
            "rmdir",
        ):
            setattr(place, name, getattr(self, name))
        place.rename, place.remove, place.fdatasync = self.replace, self.unlink, self.fsync
        real_open = io.open

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            is_changed = self._inside(file) is not None and set(mode) & set("wxa+")
            return (_pyio.open if is_changed else real_open)(file, mode, *arguments, **options)

        place = io
        place.open = opened
        place = builtins
        place.open = opened
        place = block_files
        place.FileIO = _pyio.FileIO


DISK = Disk()
