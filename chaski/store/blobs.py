"""`Blobs`: files named by the SHA-256 of their content."""

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

SMALL = 32 << 20  # maximum bytes of a blob that is read whole: texts and settings, never weights
_DAMAGED = "-damaged"
_PIECE = 1 << 20


class Blobs:
    """The blobs of a store. Safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: Digest) -> Path:
        """Return the path of a blob, which need not exist. Only this method derives paths from digests."""
        return self.folder / digest.file_name

    def size(self, digest: Digest) -> int | None:
        """Return the size of a blob in bytes, or None if it is missing."""
        path = self.path(digest)
        return path.stat().st_size if path.is_file() else None

    def freed_bytes(self, digest: Digest) -> int:
        """Return the bytes of the disk that `remove` frees: none for a hard link to another file."""
        path = self.path(digest)
        if not path.is_file():
            return 0
        status = path.lstat()
        return status.st_size if status.st_nlink == 1 else 0

    def __iter__(self) -> Iterator[Digest]:
        """Yield the digests of all blobs, sorted."""
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        for name in names:
            try:
                yield Digest.parse(name)
            except OptionError:
                continue

    def read(self, digest: Digest) -> bytes:
        """Read and verify a small blob. Raises StoreError if it is missing, damaged or too large."""
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
        """Store the bytes of `pieces`. Raises DigestError if they do not have the expected digest."""
        with self.writing() as writer:
            for piece in pieces:
                writer.write(piece)
            return writer.publish(expected)

    @contextmanager
    def writing(self) -> Iterator[BlobWriter]:
        """Open a new blob for writing. It is removed at the end unless it was published."""
        with store_errors("a blob cannot be written"):
            make_folder(self.folder)
            with scratch(self.folder) as path, path.open("xb") as file:
                yield BlobWriter(self, path, file)

    def add_file(self, source: Path) -> Digest:
        """Store a file. The blob shares its blocks if the file system supports that, else it is a copy."""
        found = self.add_clone(source)
        if found is None:
            with store_errors(f"{source.name} cannot be read"), source.open("rb") as file:
                found = self.add_stream(iter(lambda: file.read(_PIECE), b""))
        return found

    def add_clone(self, source: Path) -> Digest | None:
        """Store a file that shares its blocks with `source`, or return None if the file system cannot."""
        with self._new(source) as path:
            return self.publish(path, hash_file(path)) if clone_file(source.resolve(), path) else None

    def add_link(self, source: Path) -> Digest:
        """Store a hard link to the file. A later write to `source` damages the blob.

        Raises StoreError if it cannot be linked, for example from another file system.
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
        """Turn a file in the blob folder into a blob and return its digest.

        Raises DigestError if it does not have the expected digest."""
        with store_errors("a blob cannot be written"):
            found = hash_file(path)
            if expected in (None, found):
                self._publish(path, found)
            return found

    def remove(self, digest: Digest) -> int:
        """Delete a blob; return its size in bytes."""
        size = self.size(digest) or 0
        with store_errors(f"blob {digest.short} cannot be deleted"):
            self.path(digest).unlink(missing_ok=True)
        return size

    def is_intact(self, digest: Digest) -> bool:
        """Return whether a blob's content still matches its name. Reads the whole blob."""
        with store_errors(f"blob {digest.short} cannot be read"):
            return hash_file(self.path(digest)) == digest

    def set_aside(self, digest: Digest, seen: os.stat_result | None = None) -> bool:
        """Rename a damaged blob, so that the next pull or create fetches it again.

        seen: the state of the file before the check. A file that was replaced since then is not renamed.
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
        """Give a file with this digest its blob name; return the digest. Raises DigestError if unexpected."""
        if expected not in (None, found):
            raise DigestError(f'digest mismatch, expected "{expected}", got "{found}"')
        self._publish(path, found)
        return found

    def _publish(self, path: Path, found: Digest) -> None:
        final = self.path(found)
        publish(path, final)
        note_verified(final)


class BlobWriter:
    """Writes a blob piece by piece. Different threads may call its methods."""

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
        """Give the blob its name. Raises DigestError if it does not have the expected digest."""
        self._file.flush()
        return self._blobs.publish(self._path, Digest(self._hasher.hexdigest()), expected)


def hash_file(path: Path) -> Digest:
    """Return the digest of a file's content."""
    with path.open("rb") as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest())


def _is_unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    return os.path.samestat(before, now) and before.st_mtime_ns == now.st_mtime_ns
