"""`Blobs`: files named by the SHA-256 of what they hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from chaski.errors import DigestError, OptionError, StoreError
from chaski.names import Digest
from chaski.store.clone import clone_file
from chaski.store.durable import make_folder, publish, scratch, store_errors
from chaski.store.verified import note_verified

__all__ = ["SMALL", "BlobWriter", "Blobs", "hash_file"]

SMALL = 32 << 20  # bytes of the largest blob that is read whole: texts and settings, never weights
_DAMAGED = "-damaged"
_PIECE = 1 << 20


class Blobs:
    """The blobs of a store. Safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: Digest) -> Path:
        """Return the path of a blob, which need not exist. Nothing else makes a path of a digest."""
        return self.folder / digest.file_name

    def size(self, digest: Digest) -> int | None:
        """Bytes of a blob; None without it."""
        path = self.path(digest)
        return path.stat().st_size if path.is_file() else None

    def __iter__(self) -> Iterator[Digest]:
        """All blobs, in order of digest."""
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        for name in names:
            try:
                yield Digest.parse(name)
            except OptionError:
                continue

    def read(self, digest: Digest) -> bytes:
        """A small blob, checked. Raises StoreError when it is missing, damaged or not small."""
        why = f"blob {digest.short} cannot be read"
        if self.size(digest) is None:
            raise StoreError(f"blob {digest.short} is missing; pull or create its model again")
        with store_errors(why), self.path(digest).open("rb") as file:
            data = file.read(SMALL + 1)
        if len(data) > SMALL:
            raise StoreError(f"blob {digest.short} has more than {SMALL} bytes; no text has")
        if hashlib.sha256(data).hexdigest() != digest.hex:
            raise StoreError(f"blob {digest.short} is damaged; pull or create its model again")
        return data

    def add(self, data: bytes) -> Digest:
        """Store a small blob."""
        return self.add_stream([data])

    def add_stream(self, pieces: Iterable[bytes], expected: Digest | None = None) -> Digest:
        """Store what `pieces` gives, if it has the expected digest. Raises DigestError if it has not."""
        with self.writing() as writer:
            for piece in pieces:
                writer.write(piece)
            return writer.publish(expected)

    @contextmanager
    def writing(self) -> Iterator[BlobWriter]:
        """A blob in the making, which is gone afterwards unless it was published."""
        with store_errors("a blob cannot be written"):
            make_folder(self.folder)
            with scratch(self.folder) as path, path.open("xb") as file:
                yield BlobWriter(self, path, file)

    def add_file(self, source: Path) -> Digest:
        """Store a file: it shares blocks where the file system can, else it is copied."""
        found = self.add_clone(source)
        if found is None:
            with store_errors(f"{source.name} cannot be read"), source.open("rb") as file:
                found = self.add_stream(iter(lambda: file.read(_PIECE), b""))
        return found

    def add_clone(self, source: Path) -> Digest | None:
        """Store a file that shares its blocks with `source`; None where the file system cannot do that."""
        with self._new(source) as path:
            return self.publish(path, hash_file(path)) if clone_file(source.resolve(), path) else None

    def add_link(self, source: Path) -> Digest:
        """Store the file itself under a second name: who later writes into `source` damages the blob.

        Raises StoreError where it cannot be linked, as from another file system.
        """
        with self._new(source) as path:
            os.link(source.resolve(), path)
            return self.publish(path, hash_file(path))

    @contextmanager
    def _new(self, source: Path) -> Iterator[Path]:
        with store_errors(f"{source.name} cannot be added"):
            make_folder(self.folder)
            with scratch(self.folder) as path:
                yield path

    def adopt(self, path: Path, expected: Digest | None = None) -> Digest:
        """Make a file in the folder of the blobs a blob, unless it is not the expected one -> its digest."""
        with store_errors("a blob cannot be written"):
            found = hash_file(path)
            if expected in (None, found):
                self._publish(path, found)
            return found

    def remove(self, digest: Digest) -> int:
        """Delete a blob; how many bytes it had."""
        size = self.size(digest) or 0
        with store_errors(f"blob {digest.short} cannot be deleted"):
            self.path(digest).unlink(missing_ok=True)
        return size

    def is_intact(self, digest: Digest) -> bool:
        """Return whether a blob still has the content that its name promises. Reads all of it."""
        with store_errors(f"blob {digest.short} cannot be read"):
            return hash_file(self.path(digest)) == digest

    def set_aside(self, digest: Digest, seen: os.stat_result | None = None) -> bool:
        """Rename a damaged blob, so that it is missing and the next pull or create fetches it again.

        seen: the file as it was before it was found damaged. Where it has been replaced since, it stays.
        """
        path = self.path(digest)
        with store_errors(f"blob {digest.short} cannot be moved aside"):
            try:
                if seen is not None and not _is_unchanged(seen, path.stat()):
                    return False
                os.replace(path, path.with_name(f"{path.name}{_DAMAGED}"))
            except FileNotFoundError:
                return False
        return True

    def publish(self, path: Path, found: Digest, expected: Digest | None = None) -> Digest:
        """Give a file with this digest its name, if that is the expected one -> the digest."""
        if expected not in (None, found):
            raise DigestError(f'digest mismatch, expected "{expected}", got "{found}"')
        self._publish(path, found)
        return found

    def _publish(self, path: Path, found: Digest) -> None:
        final = self.path(found)
        publish(path, final)
        note_verified(final)


class BlobWriter:
    """Takes the bytes of a blob piece by piece. Each method may be called by another thread."""

    def __init__(self, blobs: Blobs, path: Path, file: BinaryIO) -> None:
        self._blobs = blobs
        self._path = path
        self._file = file
        self._hasher = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        """Add bytes."""
        self._hasher.update(piece)
        self._file.write(piece)

    def publish(self, expected: Digest | None = None) -> Digest:
        """Give the blob its name, if that is the expected one. Raises DigestError if it is not."""
        self._file.flush()
        return self._blobs.publish(self._path, Digest(self._hasher.hexdigest()), expected)


def hash_file(path: Path) -> Digest:
    """The digest of a file's content."""
    with path.open("rb") as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest())


def _is_unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    return os.path.samestat(before, now) and before.st_mtime_ns == now.st_mtime_ns
