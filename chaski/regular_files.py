"""Opening only regular files: a reader of a pipe or a device may wait, or read, without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_regular", "read_regular", "regular_descriptor"]

# A shell opens what these name, as in `<(command)`, and the writer at the other end is running already.
_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


def regular_descriptor(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file; a new one is for its owner only. Raises OSError, for what is no regular file too."""
    # Without O_NONBLOCK a pipe would wait for its other end right here.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; standard input and other open descriptors by their names too.

    Raises OSError, also for what is no regular file.
    """
    if str(path).startswith(_OPEN_ALREADY):
        return path.open("rb")
    return os.fdopen(regular_descriptor(path), "rb")


def read_regular(path: Path) -> bytes:
    """Read a whole file as `open_regular` opens it. Raises OSError."""
    with open_regular(path) as file:
        return file.read()
