"""Stored scores, so that an interrupted evaluation continues and a finished one is not computed again.

Each evaluation has two files in the folder `chaski/evaluations` of the model store: `KEY.json` describes it,
and `KEY.scores` has the scores of its tokens, chunk after chunk.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from chaski import __version__
from chaski.errors import StoreError
from chaski.formats.file_types import file_type
from chaski.formats.gguf import GGUFFile
from chaski.runner.evaluation.chunks import Chunks
from chaski.runner.evaluation.scores import SCORE, Scores
from chaski.store.store import Store
from chaski.store.verified import content_identity

__all__ = ["Description", "Records", "Subject", "described", "stored_evaluations"]

_log = logging.getLogger(__name__)


class Subject(Struct, frozen=True):
    """A model file: `identity` changes with its bytes."""

    name: str
    architecture: str
    type: str
    weights: int
    bytes: int
    identity: str

    @classmethod
    def of(cls, name: str, file: GGUFFile) -> Subject:
        """Describe an open file that the user calls `name`."""
        paths = sorted({tensor.path for tensor in file.tensors.values()})
        identity = repr([content_identity(path) for path in paths]).encode()
        return cls(
            name,
            file.architecture,
            file_type(file),
            file.num_weights,
            sum(tensor.nbytes for tensor in file.tensors.values()),
            blake2b(identity, digest_size=16).hexdigest(),
        )


class Description(Struct, frozen=True):
    """The subject of an evaluation: a model on a text, against a reference or alone.

    text    the name of the text; `digest` is that of its tokens
    chunk   scored tokens of a chunk
    """

    model: Subject
    against: Subject | None
    text: str
    digest: str
    context: int
    chunk: int
    kv_type: str
    version: str = __version__

    @property
    def key(self) -> str:
        """The name of the files: a hash of everything that the scores depend on."""
        against = "" if self.against is None else self.against.identity
        parts = self.model.identity, against, self.digest, self.context, self.kv_type, self.version
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def described(
    model: Subject, against: Subject | None, text: str, chunks: Chunks, kv_type: str | None
) -> Description:
    """Describe the evaluation of a text that was cut into chunks."""
    return Description(
        model, against, text, chunks.digest, chunks.context, chunks.num_scored, kv_type or "usual"
    )


class Records:
    """The scores of an evaluation, whole chunks of them, in a file or, without one, in memory."""

    def __init__(self, num_scored: int, descriptor: int | None) -> None:
        self._size = num_scored * SCORE.itemsize
        self._descriptor = descriptor
        self._data = bytearray() if descriptor is None else bytearray(_content(descriptor))
        del self._data[len(self) * self._size :]

    @classmethod
    @contextmanager
    def open(cls, description: Description, restart: bool = False) -> Iterator[Records]:
        """Open the records of an evaluation. `restart` removes stored scores.

        Scores are only kept in memory if the model store cannot be written. Raises StoreError if another
        process computes the same evaluation.
        """
        try:
            descriptor = _opened(description)
        except OSError as error:
            _log.warning("the scores are not stored: %s", error.strerror or error)
            yield cls(description.chunk, None)
            return
        try:
            if restart:
                os.ftruncate(descriptor, 0)
            yield cls(description.chunk, descriptor)
        finally:
            os.close(descriptor)

    def __len__(self) -> int:
        """The number of whole chunks."""
        return len(self._data) // self._size

    def append(self, scores: Scores) -> None:
        """Add the scores of the next chunk. Raises StoreError if they cannot be written."""
        data = scores.tobytes()
        if self._descriptor is not None:
            try:
                os.pwrite(self._descriptor, data, len(self._data))
            except OSError as error:
                raise StoreError(f"the scores cannot be stored: {error.strerror or error}") from None
        self._data += data

    def scores(self, num_chunks: int) -> Scores:
        """Return the scores of the first chunks."""
        return np.frombuffer(bytes(self._data[: num_chunks * self._size]), SCORE)


def stored_evaluations() -> list[tuple[Description, Scores]]:
    """Return all stored evaluations that have scores. Unreadable files are left out."""
    found: list[tuple[Description, Scores]] = []
    with suppress(OSError):
        for path in sorted(_folder().glob("*.json")):
            with suppress(OSError, msgspec.MsgspecError):
                description: Description = msgspec.json.decode(path.read_bytes(), type=Description)
                data = path.with_suffix(".scores").read_bytes()
                size = description.chunk * SCORE.itemsize
                if whole := len(data) // size * size:
                    found.append((description, np.frombuffer(data[:whole], SCORE)))
    return found


def _folder() -> Path:
    return Store.default().root / "chaski" / "evaluations"


def _opened(description: Description) -> int:
    """Open and lock the file of the scores, and write the description if it does not exist."""
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{description.key}.scores"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.with_suffix(".json").write_bytes(msgspec.json.encode(description))
    except BlockingIOError:
        os.close(descriptor)
        raise StoreError(
            "another process computes this evaluation; wait for it, or end it and run the command again"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
