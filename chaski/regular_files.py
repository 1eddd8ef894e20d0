"""Opens only regular files, because reading a pipe or a device may block or never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_regular", "read_regular", "regular_descriptor"]

# The shell has already opened these descriptors, as in `<(command)`, so reading them is safe.
_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def regular_descriptor(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file. A new file is private to its owner. Raises OSError, also for other kinds of files."""
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Names of open descriptors, such as /dev/stdin, are allowed too.

    Raises OSError, also for other kinds of files.
    """
    if str(path).startswith(_OPEN_ALREADY):
        return path.open("rb")
    return os.fdopen(regular_descriptor(path), "rb")


def read_regular(path: Path) -> bytes:
    """Read a whole file, opened with `open_regular`. Raises OSError."""
    with open_regular(path) as file:
        return file.read()
