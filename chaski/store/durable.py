"""Atomic file writes: a file is written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaski.errors import StoreError

__all__ = ["flush_file", "make_folder", "publish", "scratch", "store_errors"]


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError without paths, because servers show errors to clients."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the model store: {what}: {error.strerror or error}") from error


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Provide the path of a new file in `folder`. It is removed at the end unless it was published.

    The name follows Ollama's unfinished uploads, so each program cleans up after a crash of the other.
    """
    path = folder / f"sha256-{secrets.token_hex(8)}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def publish(path: Path, final: Path) -> None:
    """Rename a complete file durably, replacing an existing file."""
    flush_file(path)
    os.replace(path, final)
    _flush_folder(final.parent)


def flush_file(path: Path) -> None:
    """Wait until the bytes of a file are on the disk."""
    _flush(path, os.O_RDONLY)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o755, exist_ok=True)
        _flush_folder(folder.parent)


def _flush_folder(folder: Path) -> None:
    _flush(folder, os.O_RDONLY | os.O_DIRECTORY)


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
