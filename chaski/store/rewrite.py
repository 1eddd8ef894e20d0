"""Writes weights directly into a blob: quantized, joined from parts, or converted from a checkpoint."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TypeAlias

from chaski.errors import OptionError, StoreError
from chaski.names import Digest
from chaski.store.blobs import Blobs
from chaski.store.durable import make_folder, scratch, store_errors
from chaski.store.progress import StoreProgress
from chaski.store.recipe import CheckpointFiles
from chaski.store.weights import WeightSummary

__all__ = ["Note", "bring", "convert_checkpoint", "folder_of", "rewrite", "written"]

_PIECE = 1 << 20

_REPORT_SECONDS = 0.06
_NO_DIGEST = Digest("0" * 64)

Note: TypeAlias = Callable[[int, int], None]
Write: TypeAlias = Callable[[Path, Note], Digest | None]
"""Writes a file; returns its digest if known."""


def rewrite(
    blobs: Blobs, source: Path, weights: WeightSummary, mixture: str | None
) -> Generator[StoreProgress, None, Digest]:
    """Rewrite the weights; return the blob's digest. Without a mixture, the types do not change.

    Closing the generator stops the work. Raises UnsupportedError for an unknown mixture or weights that are
    already quantized.
    """

    def write(target: Path, note: Note) -> None:
        from chaski.formats.gguf import open_gguf
        from chaski.formats.requantize import check_is_float, merge, plan_types, requantize

        with open_gguf(source) as file:
            if mixture is None:
                merge(file, target, note)
            else:
                check_is_float(file, mixture)
                requantize(file, target, plan_types(file, mixture), note)

    status = f"quantizing {weights.file_type} model to {mixture}" if mixture else "joining the parts"
    return (yield from written(blobs, status, write))


def bring(blobs: Blobs, source: Path, link: bool) -> Generator[StoreProgress, None, Digest]:
    """Store an unchanged file as a blob; return its digest.

    The blob shares blocks with the file if the file system supports that. Otherwise it is a copy, or a hard
    link with `link`. Closing the generator stops the work. Raises StoreError if there is no room for a copy.
    """
    found = blobs.add_clone(source)
    if found is not None:
        return found
    if link:
        return blobs.add_link(source)
    _require_room(blobs, source)
    return (yield from written(blobs, "copying model", partial(_copy, source)))


def _copy(source: Path, target: Path, note: Note) -> Digest:
    hasher, done = hashlib.sha256(), 0
    with source.open("rb") as original, target.open("xb") as copy:
        size = os.fstat(original.fileno()).st_size
        while piece := original.read(_PIECE):
            hasher.update(piece)
            copy.write(piece)
            done += len(piece)
            note(done, size)
    return Digest(hasher.hexdigest())


def _require_room(blobs: Blobs, source: Path) -> None:
    size, free = source.stat().st_size, shutil.disk_usage(blobs.folder).free
    if size > free:
        raise StoreError(
            f"{source.name} has {size} bytes, and the disk of the model store has room for {free}; make "
            "room, or let the store have the file itself with --link"
        )


@contextmanager
def folder_of(blobs: Blobs, files: CheckpointFiles, name: str) -> Iterator[Path]:
    """Provide a folder of that name with the blobs at their relative paths, without copying bytes."""
    with TemporaryDirectory(prefix="chaski-") as top:
        folder = Path(top) / name
        for path, digest in files.blobs.items():
            if blobs.size(digest) is None:
                raise OptionError(f"files names {path} with the digest {digest}, which was not uploaded")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(blobs.path(digest).absolute())
        yield folder


def convert_checkpoint(
    blobs: Blobs, folder: Path, mixture: str | None
) -> Generator[StoreProgress, None, Digest]:
    """Convert a checkpoint, by default to F16; return the blob's digest. Raises the errors of `convert`."""

    def write(target: Path, note: Note) -> None:
        from chaski.convert.convert import convert

        convert(folder, target, mixture or "F16", note)

    return (yield from written(blobs, "converting model", write))


def written(blobs: Blobs, status: str, write: Write) -> Generator[StoreProgress, None, Digest]:
    """Store the file written by `write` as a blob; return its digest. Progress has the text `status`."""
    with store_errors("a blob cannot be written"):
        make_folder(blobs.folder)
        with scratch(blobs.folder) as path:
            work = _Work(path, write)
            for done, total in work.run():
                yield StoreProgress(status, _NO_DIGEST, total, done)
            return blobs.adopt(path) if work.digest is None else blobs.publish(path, work.digest)


class _StoppedError(Exception):
    """The result is no longer needed."""


class _Work:
    """Writes in a separate thread, so that progress can be reported meanwhile."""

    def __init__(self, target: Path, write: Write) -> None:
        self._target, self._write = target, write
        self._stop, self._ended = Event(), Event()
        self._share = (0, 0)
        self._failure: Exception | None = None
        self.digest: Digest | None = None

    def run(self) -> Generator[tuple[int, int], None, None]:
        """Yield the completed and total bytes. Raises the errors of the writing."""
        try:
            Thread(target=self._guarded, daemon=True).start()
        except RuntimeError as error:  # the system refuses another thread
            raise BlockingIOError(errno.EAGAIN, str(error)) from None
        try:
            has_ended = False
            while not has_ended:
                has_ended = self._ended.wait(_REPORT_SECONDS)
                yield self._share  # the last time after everything is written
        finally:
            self._stop.set()
            # Not `Thread.join`: up to Python 3.12, a join interrupted by a signal makes the next join return
            # at once.
            self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def _guarded(self) -> None:
        try:
            self.digest = self._write(self._target, self._note)
        except _StoppedError:
            pass
        except Exception as error:
            self._failure = error
        finally:
            self._ended.set()

    def _note(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _StoppedError
        self._share = (done, total)
