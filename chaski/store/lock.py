"""Locks of a store: many processes may add to it, or one may delete blobs from it.

Locks belong to an open file, so they hold between threads as between processes, and end with the process.
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
    """Keep others from deleting blobs meanwhile, so that a blob that is not yet in a manifest stays."""
    with _opened(root) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def hold_deleting(root: Path) -> Iterator[bool]:
    """Hold off all who would add or delete, and yield True; False if somebody does. It does not wait."""
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
