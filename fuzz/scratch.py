"""A folder in memory for inputs that chaski reads from files. It is removed when the process ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

__all__ = ["folder", "written"]


@cache
def folder() -> Path:
    """Return the folder of this process."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="chaski-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def written(data: bytes, name: str) -> Path:
    """Write a file of the folder; it replaces the one of an earlier input."""
    path = folder() / name
    path.unlink(missing_ok=True)  # an earlier file may still be mapped, so it keeps its content
    path.write_bytes(data)
    return path
