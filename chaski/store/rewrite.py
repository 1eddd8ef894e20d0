"""`rewrite`: weights in other types, or the parts of a split file as one, straight into a blob."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from threading import Event, Thread

from chaski.names import Digest
from chaski.store.blobs import Blobs
from chaski.store.durable import make_folder, scratch, store_errors
from chaski.store.progress import Progress
from chaski.store.weights import Weights

__all__ = ["rewrite"]

_REPORT_SECONDS = 0.06
_NO_DIGEST = Digest("0" * 64)


def rewrite(
    blobs: Blobs, source: Path, weights: Weights, mixture: str | None
) -> Generator[Progress, None, Digest]:
    """Write the weights anew -> the blob's digest. Without a mixture the types stay; closing it stops it.

    Raises UnsupportedError for a mixture that is unknown, or weights that are quantized already.
    """
    with store_errors("a blob cannot be written"):
        make_folder(blobs.folder)
        with scratch(blobs.folder) as path:
            work = _Work(source, path, mixture)
            status = f"quantizing {weights.file_type} model to {mixture}" if mixture else "joining the parts"
            for done, total in work.run():
                yield Progress(status, _NO_DIGEST, total, done)
            return blobs.adopt(path)


class _StoppedError(Exception):
    """Nobody waits for the result any more."""


class _Work:
    """The writing, in a thread of its own, so that its progress can be told meanwhile."""

    def __init__(self, source: Path, target: Path, mixture: str | None) -> None:
        self._source, self._target, self._mixture = source, target, mixture
        self._stop = Event()
        self._share = (0, 0)
        self._failure: Exception | None = None

    def run(self) -> Generator[tuple[int, int], None, None]:
        """Elements that are done, and all; raises what the writing raises."""
        thread = Thread(target=self._guarded, args=(self._write,), daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_REPORT_SECONDS)
                yield self._share
        finally:
            self._stop.set()
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except _StoppedError:
            pass
        except Exception as error:
            self._failure = error

    def _write(self) -> None:
        from chaski.formats.gguf import open_gguf
        from chaski.formats.requantize import merge, requantize

        with open_gguf(self._source) as file:
            if self._mixture is None:
                merge(file, self._target, self._note)
            else:
                requantize(file, self._target, self._mixture, self._note)

    def _note(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _StoppedError
        self._share = (done, total)
