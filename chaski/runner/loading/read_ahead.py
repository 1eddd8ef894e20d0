"""Reading a model's file into the system's memory while the model is prepared."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from chaski.ml.machine import available_memory

__all__ = ["begin_reading"]

# The system reads only the beginning of a longer request.
_REQUEST_BYTES = 512 << 10
# Of the memory that is available: the rest is for what the model itself takes.
_SHARE_OF_MEMORY = 2


def begin_reading(path: Path) -> None:
    """Have the system read a file in the background, if memory has room for it and as much again.

    A file that cannot be read is left to whoever opens it.
    """
    if hasattr(os, "posix_fadvise"):
        threading.Thread(target=_read, args=(path,), name="chaski-reading", daemon=True).start()


def _read(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        size = os.fstat(descriptor).st_size
        if size > available_memory() // _SHARE_OF_MEMORY:
            return
        for begin in range(0, size, _REQUEST_BYTES):
            os.posix_fadvise(descriptor, begin, _REQUEST_BYTES, os.POSIX_FADV_WILLNEED)
    except OSError:
        return  # a pipe, or a file system that knows no such requests
    finally:
        os.close(descriptor)
