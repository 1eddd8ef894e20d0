"""Uploads of blobs. They occupy no thread while they wait, and slow ones are interrupted for others."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from starlette.types import Receive

from chaski.names import Digest
from chaski.server.network.arrivals import Arrivals
from chaski.server.network.budget import TooLargeError
from chaski.store.blobs import Blobs

__all__ = ["Uploads"]

_THREADS = 4
_WRITTEN_AT_ONCE = 1 << 20
_CHECKED_AT_ONCE = 64 << 20
# Bytes that must stay free on the disk.
_SPARE = 1 << 30


class Uploads:
    """Receiver of blobs from clients. Use it in one event loop only.

    idle_seconds  longest wait for the next piece of a blob
    most          largest number of concurrent uploads
    """

    def __init__(self, idle_seconds: float, most: int) -> None:
        self._idle_seconds = idle_seconds
        self._arrivals = Arrivals(max(1, most))
        self._threads = ThreadPoolExecutor(_THREADS, "chaski-upload")

    async def receive(self, blobs: Blobs, digest: Digest, receive: Receive) -> None:
        """Add the body as a blob.

        Raises DigestError if the body has another digest, TooLargeError if the disk has too little free
        space, SlowBodyError, and BusyError.
        """
        run = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        writing = blobs.writing()
        with self._arrivals.enter() as arrival:
            writer = await run(writing.__enter__)
            try:
                room, waiting = 0, bytearray()
                async for piece in arrival.pieces(receive, self._idle_seconds):
                    waiting += piece
                    if len(waiting) < _WRITTEN_AT_ONCE:
                        continue
                    room -= len(waiting)
                    if room < 0:
                        room = await run(_room_in, blobs) - len(waiting)
                    await run(writer.write, bytes(waiting))
                    waiting.clear()
                await run(writer.write, bytes(waiting))
                await run(writer.publish, digest)
            finally:
                await run(writing.__exit__, None, None, None)

    async def discard(self, receive: Receive) -> None:
        """Read and drop the bytes of a blob that is not needed. Raises SlowBodyError, BusyError."""
        with self._arrivals.enter() as arrival:
            async for _ in arrival.pieces(receive, self._idle_seconds):
                pass

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _room_in(blobs: Blobs) -> int:
    """Return the bytes that may be written before free space is checked again. Raises TooLargeError."""
    if shutil.disk_usage(blobs.folder).free < _SPARE + _CHECKED_AT_ONCE:
        raise TooLargeError("the server's disk has too little free space for the blob")
    return _CHECKED_AT_ONCE
