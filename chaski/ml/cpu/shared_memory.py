"""Memory shared by the processes of one user that load the same weights; one of them fills it.

The memory is a file without a name (memfd). It needs no folder with free space, and the system frees it when
its last user ends, even after a crash. A process that holds such memory announces it by a socket whose
abstract name contains the key, the process and the descriptor. Other processes find the name in the system's
list and open the descriptor under /proc, which the system allows only to the same user.

The process that holds the lock fills the memory. The lock ends with its process; then another process starts
over. Filled memory is sealed: no process can write to it any more, and the seal shows that it is complete.
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

# Memory is shared in whole pages of this size; less than one page is not worth sharing.
PAGE = 2 << 20

_NAME = "chaski-weights"
_SOCKETS = Path("/proc/net/unix")
# Processes that start at the same time wait for each other at most this many seconds.
_PATIENCE = 1.0


class SharedMemory:
    """Memory of a key, in whole pages, empty at first. This process reads it through `descriptor`."""

    def __init__(self, key: str, descriptor: int) -> None:
        """Announce the memory of this process. `close` closes `descriptor`."""
        self.descriptor = descriptor
        name = socket.socket(socket.AF_UNIX)
        with suppress(OSError):  # other processes then do not find this memory
            name.bind(f"\0{_NAME}/{key}/{os.getpid()}/{descriptor}".encode())
        self._close = weakref.finalize(self, _close, name, descriptor)

    @classmethod
    def of(cls, key: str, size: int, common: Path) -> SharedMemory | None:
        """Return existing or new memory for `key`; None if the system cannot share it well.

        `common`: a file that all processes with this key have; its lock keeps them from making two memories.
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
        """True if all of it is filled and will not change."""
        return bool(fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)

    @property
    def is_taken(self) -> bool:
        """True if a process has filled it or is filling it, so that using it takes no further memory."""
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
        """Take the lock for filling the memory -> False if another process holds it."""
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
        """Yield a descriptor for writing."""
        descriptor = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def seal(self) -> None:
        """Mark the memory as complete. This fails while another process has it mapped for writing."""
        with self.writing() as descriptor, suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)

    def close(self) -> None:
        """Stop announcing the memory. Existing mappings stay valid."""
        self._close()


def _close(name: socket.socket, descriptor: int) -> None:
    name.close()
    os.close(descriptor)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file. After a timeout, continue without it: a key may then get two memories."""
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
    """Make memory of a fixed size -> a descriptor for reading. No mapping can ever lack a page."""
    descriptor = os.memfd_create(f"{_NAME}/{key}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        # Mappings of a writable descriptor would prevent the last seal.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)


def _found(key: str, size: int) -> int | None:
    """Open the memory of a running process -> a descriptor for reading, or None."""
    prefix = f"@{_NAME}/{key}/"
    with _SOCKETS.open(errors="replace") as lines:
        names = [line.rstrip("\n").rpartition(" ")[2] for line in lines]
    for name in names:
        process, _, number = name.removeprefix(prefix).partition("/")
        if not name.startswith(prefix) or not process.isdecimal() or not number.isdecimal():
            continue
        with suppress(OSError):  # the process has ended
            descriptor = _opened(f"/proc/{process}/fd/{number}", key, size)
            if descriptor is not None:
                return descriptor
    return None


def _opened(path: str, key: str, size: int) -> int | None:
    """Open memory that `_new` made for this user; None for any other file of that name."""
    target = f"/memfd:{_NAME}/{key} (deleted)"
    if os.readlink(path) != target:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    # The descriptor may belong to another file by now.
    if os.readlink(f"/proc/self/fd/{descriptor}") == target:
        state, fixed = os.fstat(descriptor), fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        has_size = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fixed == fixed and state.st_size == size
        if has_size and state.st_uid == os.geteuid():
            return descriptor
    os.close(descriptor)
    return None
