"""Memory shared by the processes of one user that load the same weights; one of them fills it.

It is a file without a name (memfd). So it needs no folder with room, and the system frees it with its last
user, however that process ends. A process that has such memory announces it by a socket whose abstract name
holds the key, the process and the descriptor. Others find the name in the system's list and open the
descriptor under /proc, which the system allows to the same user only.

The process that holds the lock fills it. The lock ends with its process; then the next process begins again.
Full memory is sealed: no process can write there any more, and the seal shows that it is complete.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chaski import _native

__all__ = ["SharedMemory"]

# Pages are taken whole; less than one is not worth sharing.
PAGE = 2 << 20

_NAME = "chaski-weights"
_SOCKETS = Path("/proc/net/unix")
# Two processes that begin at the same time wait this many seconds for each other, at most.
_PATIENCE = 1.0


class SharedMemory:
    """Memory of a key, in whole pages, which this process reads by `descriptor`. At first it is empty."""

    def __init__(self, key: str, descriptor: int) -> None:
        """Announce that this process has it. `descriptor` is closed in the end."""
        self.descriptor = descriptor
        name = socket.socket(socket.AF_UNIX)
        with suppress(OSError):  # then no process finds it here
            name.bind(f"\0{_NAME}/{key}/{os.getpid()}/{descriptor}".encode())
        self._close = weakref.finalize(self, _close, name, descriptor)

    @classmethod
    def of(cls, key: str, size: int, common: Path) -> SharedMemory | None:
        """Return the memory of `key`, found or new; None where the system does not share it well.

        `common`: a file of all processes that want that key; its lock keeps them from making two.
        """
        if size < PAGE or not _native.can_share_huge_pages():
            return None
        size = -(-size // PAGE) * PAGE
        try:
            with _alone(common):
                descriptor = _found(key, size)
                return cls(key, _new(key, size) if descriptor is None else descriptor)
        except OSError:
            return None

    @property
    def is_complete(self) -> bool:
        """True if all of it is filled, and stays as it is."""
        return bool(fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)

    @property
    def is_taken(self) -> bool:
        """True if a process has filled it, or is filling it: it takes no more memory."""
        if self.is_complete or not self.lock():
            return True
        self.unlock()
        return False

    @property
    def share(self) -> float:
        """The share of it that is allocated, from 0 to 1."""
        state = os.fstat(self.descriptor)
        return min(1.0, 512 * state.st_blocks / state.st_size)

    def lock(self) -> bool:
        """Become the one that fills it; False while another one is."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Let another process fill it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    @contextmanager
    def writing(self) -> Iterator[int]:
        """Give a descriptor to write by."""
        descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def seal(self) -> None:
        """Mark it as complete; this fails while another process has it mapped for writing."""
        with self.writing() as descriptor, suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)

    def close(self) -> None:
        """Let others find it here no more. Mappings stay."""
        self._close()


def _close(name: socket.socket, descriptor: int) -> None:
    name.close()
    os.close(descriptor)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file, or continue without it after a while: then a key may have two memories."""
    end = time.monotonic() + _PATIENCE
    with path.open("rb") as file:
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:  # a file system without locks
                break
        yield


def _new(key: str, size: int) -> int:
    """Make memory -> a descriptor to read by. Its size is fixed, so that no mapping ever lacks a page."""
    descriptor = os.memfd_create(f"{_NAME}/{key}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        # Mappings of a descriptor that can write would be in the way of the last seal.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)


def _found(key: str, size: int) -> int | None:
    """Open the memory of a living process -> a descriptor to read by."""
    prefix = f"@{_NAME}/{key}/"
    with _SOCKETS.open(errors="replace") as lines:
        names = [line.rstrip("\n").rpartition(" ")[2] for line in lines]
    for name in names:
        process, _, number = name.removeprefix(prefix).partition("/")
        if not name.startswith(prefix) or not process.isdecimal() or not number.isdecimal():
            continue
        with suppress(OSError):  # it is gone
            descriptor = _opened(f"/proc/{process}/fd/{number}", key, size)
            if descriptor is not None:
                return descriptor
    return None


def _opened(path: str, key: str, size: int) -> int | None:
    """Open memory that was made by `_new`, by this user; None for anything else that has its name."""
    target = f"/memfd:{_NAME}/{key} (deleted)"
    if os.readlink(path) != target:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    # Meanwhile the descriptor may have become another file's.
    if os.readlink(f"/proc/self/fd/{descriptor}") == target:
        state, fixed = os.fstat(descriptor), fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        has_size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fixed == fixed and state.st_size == size
        if has_size and state.st_uid == os.geteuid():
            return descriptor
    os.close(descriptor)
    return None
