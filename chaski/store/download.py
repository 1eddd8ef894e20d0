"""`download`: fetches a blob from a registry in parallel parts, each of which can be resumed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Protocol

from msgspec import Struct

from chaski.errors import DigestError, RegistryError, StoreError
from chaski.names import Digest
from chaski.store.blobs import Blobs
from chaski.store.durable import store_errors
from chaski.store.http import SlowError, TemporaryError
from chaski.store.manifest import ManifestLayer
from chaski.store.parts import Part, PartialFile

__all__ = ["BlobSource", "Pace", "download"]

_GRACE_SECONDS = 0.1
_SAVE_BYTES = 16 << 20  # maximum bytes of each part to fetch again after a killed process


class Pace(Struct, frozen=True):
    """Settings for fetching and sending blobs.

    connections       parts that travel at the same time
    min_part_bytes, max_part_bytes   a blob is cut into `connections` parts within these sizes
    tries consecutive failures of a request after which the transfer fails pause_seconds wait after the first
    failure; it doubles after each further failure report_seconds seconds between reports of progress
    send_bytes maximum bytes in one upload request
    """

    connections: int = 16
    min_part_bytes: int = 100_000_000
    max_part_bytes: int = 1_000_000_000
    tries: int = 6
    pause_seconds: float = 1.0
    report_seconds: float = 0.06
    send_bytes: int = 32_000_000

    def part_bytes(self, size: int) -> int:
        return min(max(-(-size // self.connections), self.min_part_bytes), self.max_part_bytes)


class BlobSource(Protocol):
    """A server that provides blobs. Several threads may call its method."""

    def blob(
        self, digest: Digest, begin: int, end: int, size: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Provide the actual start position and the bytes from `begin` to `end`.

        Raises TemporaryError if a retry may help, else RegistryError.
        """


def download(registry: BlobSource, blobs: Blobs, layer: ManifestLayer, pace: Pace) -> Iterator[int]:
    """Fetch a missing blob; repeatedly yield the number of bytes present.

    A partial download is kept for the next attempt if this fails, is closed, or the process dies. The blob
    gets its name only after its digest was checked. Raises RegistryError, DigestError or StoreError.
    """
    while blobs.size(layer.digest) != layer.size:
        with store_errors("a download cannot be written"):
            partial = PartialFile(blobs.path(layer.digest), layer.size)
        with closing(partial):
            if partial.lock():
                yield from _Transfer(registry, blobs, layer, pace, partial).run()
                return
        # Another process is fetching the same blob.
        time.sleep(pace.report_seconds)
        yield 0


class _NoRangesError(RegistryError):
    """The server sends whole blobs only."""


class _Transfer:
    """The threads that fetch the parts of a blob."""

    def __init__(
        self, registry: BlobSource, blobs: Blobs, layer: ManifestLayer, pace: Pace, partial: PartialFile
    ) -> None:
        self._registry, self._blobs, self._layer = registry, blobs, layer
        self._pace, self._partial = pace, partial
        self._stop = Event()

    def run(self) -> Iterator[int]:
        """Fetch, check and publish. If bytes of an earlier attempt are wrong, fetch everything once more."""
        with store_errors("a download cannot be written"):
            self._require_space()
            parts = self._partial.load(self._pace.part_bytes(self._layer.size))
            was_begun = any(part.completed for part in parts)
            try:
                yield from self._fetch_all(parts)
            except _NoRangesError:
                was_begun = False
                yield from self._fetch_all(self._partial.reset(max(self._layer.size, 1)))
            if not self._adopt(is_last=not was_begun):
                yield from self._fetch_all(self._partial.reset(self._pace.part_bytes(self._layer.size)))
                self._adopt(is_last=True)

    def _require_space(self) -> None:
        needed = self._layer.size - self._partial.allocated
        free = shutil.disk_usage(self._blobs.folder).free
        if needed > free:
            raise StoreError(f"a blob of the model needs {needed} more bytes; the disk has {free} free")

    def _adopt(self, is_last: bool) -> bool:
        """Publish the file as a blob. Return False if its digest is wrong and another attempt is allowed."""
        wanted = self._layer.digest
        found = self._blobs.adopt(self._partial.path, wanted)
        if found == wanted:
            self._partial.forget()
            return True
        if is_last:
            self._partial.discard()
            raise DigestError(f"digest mismatch, file must be downloaded again: want {wanted}, got {found}")
        return False

    def _fetch_all(self, parts: list[Part]) -> Iterator[int]:
        """Run the threads; yield progress until all parts are complete or one failed."""
        waiting: SimpleQueue[Part] = SimpleQueue()
        unfinished = [part for part in parts if not part.is_complete]
        for part in unfinished:
            waiting.put(part)
        failures: SimpleQueue[Exception] = SimpleQueue()
        self._stop.clear()
        threads: list[Thread] = []
        try:
            for _ in range(min(len(unfinished), self._pace.connections)):
                thread = Thread(target=self._work, args=(waiting, failures, len(parts) == 1), daemon=True)
                if not self._start(thread, is_needed=not threads):
                    break
                threads.append(thread)
            while alive := [thread for thread in threads if thread.is_alive()]:
                yield sum(part.completed for part in parts)
                alive[0].join(self._pace.report_seconds)
        finally:
            # A caller that stops early does not wait for a silent server; its thread ends later by itself.
            self._stop.set()
            for thread in threads:
                thread.join(_GRACE_SECONDS)
        if not failures.empty():
            raise failures.get()
        yield self._layer.size

    def _start(self, thread: Thread, is_needed: bool) -> bool:
        """Start a thread unless the system refuses it. Raises StoreError if it is needed."""
        self._partial.retain()
        try:
            thread.start()
        except RuntimeError as error:
            self._partial.close()
            if is_needed:
                raise StoreError(
                    f"the system refuses a thread for the download ({error}); raise its limit of threads "
                    "(ulimit -u) or end other programs"
                ) from None
            return False
        return True

    def _work(self, waiting: SimpleQueue[Part], failures: SimpleQueue[Exception], is_only: bool) -> None:
        """Fetch parts until none are left. The first failure stops all threads, and `run` raises it."""
        try:
            while not self._stop.is_set():
                self._fetch(waiting.get_nowait(), is_only)
        except Empty:
            pass
        except Exception as error:
            if not self._stop.is_set():
                failures.put(error)
            self._stop.set()
        finally:
            self._partial.close()

    def _fetch(self, part: Part, is_only: bool) -> None:
        """Fetch a part, resuming it after interruptions.

        Only failures without progress since the previous failure, and slow servers, count as tries.
        """
        tries = 0
        while not part.is_complete and not self._stop.is_set():
            before = part.completed
            try:
                self._fetch_some(part, is_only)
            except TemporaryError as error:
                has_helped = part.completed > before and not isinstance(error, SlowError)
                tries = 1 if has_helped else tries + 1
                if tries >= self._pace.tries:
                    raise RegistryError(f"max retries exceeded: {error}") from None
                self._stop.wait(self._pace.pause_seconds * 2 ** (tries - 1))
            finally:
                self._partial.save(part)

    def _fetch_some(self, part: Part, is_only: bool) -> None:
        """Send one request and write the received bytes."""
        position = part.offset + part.completed
        saved = part.completed
        with self._registry.blob(self._layer.digest, position, part.end, self._layer.size) as (begin, pieces):
            if begin != position:
                if not is_only:
                    raise _NoRangesError("the registry does not serve parts of blobs")
                part.completed = saved = 0
            for piece in pieces:
                if self._stop.is_set():
                    return
                self._write(part, piece, is_only)
                if part.completed - saved >= _SAVE_BYTES:
                    self._partial.save(part)
                    saved = part.completed
                if part.is_complete and not is_only:
                    return
        if not part.is_complete:
            raise TemporaryError(f"the registry sent {part.completed} of {part.size} bytes")

    def _write(self, part: Part, piece: bytes, is_only: bool) -> None:
        room = part.size - part.completed
        if len(piece) > room and is_only:
            raise RegistryError("the registry sent more bytes than the manifest says")
        self._partial.write(part.offset + part.completed, piece[:room])
        part.completed += min(len(piece), room)
