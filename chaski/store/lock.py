"""Store locks: either many processes add to the store, or one deletes blobs from it.

A lock belongs to an open file. It therefore works between threads and processes, and ends with the process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaski.store.durable import store_errors

__all__ = ["hold_adding", "hold_deleting"]

_NAME = "chaski.lock"


@contextmanager
def hold_adding(root: Path) -> Iterator[None]:
    """Prevent deletion of blobs, so that blobs without a manifest yet are kept."""
    with _opened(root) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def hold_deleting(root: Path) -> Iterator[bool]:
    """Try to lock out adding and deleting; yield whether that worked, without waiting."""
    with _opened(root) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    with store_errors("cannot be locked"):
        descriptor = os.open(root / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
