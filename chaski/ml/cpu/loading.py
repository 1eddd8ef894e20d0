"""Brings matrices from their files into the memory that kernels read.

Most of a warm start is new memory: the system clears every page before it hands it out. A file that lies in
the system's memory already can be computed with as it is, a little slower, so `load` only says where matrices
are, the first run reads them there, and a thread takes the memory and lays them out behind it. Any other file
is read here, once.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaski import _native
from chaski.errors import ModelError
from chaski.forks import ForkGuard
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType, row_bytes
from chaski.ml.backend import ProgressCallback
from chaski.ml.graph import Weight

__all__ = ["Loading", "StoredMatrix", "laid_out_type"]

# Matrices are laid out in groups of about this size, between which progress is shown and `close` is seen. A
# model that is smaller is there at once.
GROUP_BYTES = 64 << 20

# Share of a file that must be in memory; with less, reading the file twice costs more than it saves.
WARM = 0.99

# Without a run in so many seconds the thread begins anyway.
PATIENCE = 1.0


def laid_out_type(type: QuantType) -> QuantType:
    """Return the type of a tensor's panels: kernels have one order of the codes in a block."""
    return QuantType.MXFP4 if type is QuantType.MXFP4_INTERLEAVED else type


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix of a file, the `index`-th of those of its tensor, and where it goes in the weights' memory."""

    weight: Weight
    info: TensorInfo
    index: int
    offset: int

    @property
    def type(self) -> QuantType:
        """The type that it has when it is laid out."""
        return laid_out_type(self.info.type)

    @property
    def num_bytes(self) -> int:
        return self.info.nbytes // math.prod(self.info.shape[:-2])

    @property
    def place(self) -> int:
        """The place of its first byte in the file."""
        return self.info.offset + (self.index * self.info.strides[0] if len(self.info.shape) > 2 else 0)

    @property
    def stride(self) -> int:
        """Bytes from one row to the next in the file; rows of others may lie between."""
        return self.info.strides[-1]

    @property
    def end(self) -> int:
        """The place behind its last byte in the file."""
        rows, columns = self.info.shape[-2:]
        return self.place + (rows - 1) * self.stride + row_bytes(self.info.type, columns)

    @property
    def target(self) -> _native.WeightMatrix:
        handle = self.weight.handle
        target = handle[self.index] if isinstance(handle, list) else handle
        assert isinstance(target, _native.WeightMatrix)
        return target


class Touchable(Protocol):
    """Memory that is reserved, but not yet allocated."""

    def touch(self) -> None:
        """Allocate all of it; data that others write there meanwhile stays."""


class Loading:
    """The matrices of a backend until all of them are laid out.

    One thread computes and calls `ran`; others may `wait_loaded` at the same time.
    """

    def __init__(self, pool: _native.ThreadPool, isa: str) -> None:
        self._pool = pool
        self._isa = isa
        self._files: dict[Path, _native.WeightFile] = {}
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._may_begin = threading.Event()
        self._is_closed = False
        self._fork_guard = ForkGuard("the model")

    def load(
        self, matrices: Sequence[StoredMatrix], untouched: Sequence[Touchable], progress: ProgressCallback
    ) -> None:
        """Make matrices ready to compute with, and take the memory of `untouched`.

        Raises ModelError where a file cannot be read.
        """
        self._files |= _open_files(matrices)
        for matrix in matrices:
            matrix.target.take_from(self._files[matrix.info.path], matrix.place)
        groups = list(_groups(matrices))
        if len(groups) > 1 and _are_warm(self._files, matrices):
            self._lay_out_behind(groups, untouched)
        else:
            for part in untouched:
                part.touch()
            total, done = max(1, sum(matrix.num_bytes for matrix in matrices)), 0
            for group in groups:
                self._lay_out(self._pool, group)
                done += sum(matrix.num_bytes for matrix in group)
                progress(done / total)
        progress(1.0)

    def ran(self) -> None:
        """Note that a plan has computed. Raises ModelError if weights that it needed could not be read."""
        thread = self._thread
        if thread is not None:
            self._may_begin.set()
            self._check()
            if not thread.is_alive():
                self._thread = None

    def wait_loaded(self) -> None:
        """Wait until all matrices are laid out. Raises the error of the thread, ModelError for files."""
        thread = self._thread
        if thread is not None:
            self._may_begin.set()
            thread.join()
        self._check()

    def close(self) -> None:
        """Stop laying out. A fork does not have the thread, so there it does nothing."""
        if self._fork_guard.is_forked:
            return
        self._is_closed = True
        self._may_begin.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._files = {}

    def _lay_out_behind(
        self, groups: Sequence[Sequence[StoredMatrix]], untouched: Sequence[Touchable]
    ) -> None:
        self._thread = threading.Thread(
            target=self._work, args=(groups, untouched), name="chaski-loading", daemon=True
        )
        self._thread.start()

    def _work(self, groups: Sequence[Sequence[StoredMatrix]], untouched: Sequence[Touchable]) -> None:
        # A thread in native code while the interpreter shuts down would crash the process.
        atexit.register(self.close)
        self._may_begin.wait(PATIENCE)
        pool = _native.ThreadPool(max(1, self._pool.threads // 2))
        try:
            for part in untouched:
                part.touch()
            for group in groups:
                if self._is_closed:
                    break
                self._lay_out(pool, group)
        except Exception as error:
            self._failure = error  # for whoever computes next
        finally:
            atexit.unregister(self.close)

    def _lay_out(self, pool: _native.ThreadPool, group: Sequence[StoredMatrix]) -> None:
        try:
            _native.lay_out(pool, self._isa, [matrix.target for matrix in group])
        except RuntimeError as error:
            raise _unreadable(group[0].info.path, str(error)) from error

    def _check(self) -> None:
        for path, file in self._files.items():
            if file.error:
                raise _unreadable(path, os.strerror(file.error))
        if self._failure is not None:
            raise self._failure


def _open_files(matrices: Sequence[StoredMatrix]) -> dict[Path, _native.WeightFile]:
    files = {}
    for path in dict.fromkeys(matrix.info.path for matrix in matrices):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise _unreadable(path, str(error)) from error
        try:
            files[path] = _native.WeightFile(descriptor)
        finally:
            os.close(descriptor)
    return files


def _are_warm(files: Mapping[Path, _native.WeightFile], matrices: Sequence[StoredMatrix]) -> bool:
    """Return whether the system has the files in memory, from the first of these matrices to the last."""
    for path, file in files.items():
        own = [matrix for matrix in matrices if matrix.info.path == path]
        begin = min(matrix.place for matrix in own)
        end = max(matrix.end for matrix in own)
        if file.resident_share(begin, end - begin) < WARM:
            return False
    return True


def _groups(matrices: Sequence[StoredMatrix]) -> Iterator[list[StoredMatrix]]:
    group: list[StoredMatrix] = []
    size = 0
    for matrix in matrices:
        group.append(matrix)
        size += matrix.num_bytes
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _unreadable(path: Path, reason: str) -> ModelError:
    return ModelError(f"the weights of {path} cannot be read: {reason}")
