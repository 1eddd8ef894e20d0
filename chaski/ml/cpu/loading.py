"""Loading of matrices from their files into the memory that kernels read.

Most of the time of a warm start goes into new memory, because the system clears every page that it allocates.
A file that is already in the page cache can be used directly, a little more slowly. For such a file `load`
only records where the matrices are. The first run reads them there, and a thread lays them out in memory in
the background. A small file on disk is treated in the same way, so the first run computes while the disk
reads. Any other file is read once by `load`, which reports its progress. If several processes share the
memory, one of them lays it out and the others wait for it.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from chaski import _native
from chaski.errors import OutOfMemoryError
from chaski.forks import ForkGuard
from chaski.ml.backend import ProgressCallback
from chaski.ml.cpu.experts import ExpertMemory
from chaski.ml.cpu.partly_loaded import PartlyLoaded
from chaski.ml.cpu.shared_memory import SharedMemory
from chaski.ml.cpu.weight_files import StoredMatrix, WeightFiles, unreadable
from chaski.ml.limits import address_space_note
from chaski.ml.machine import available_memory

__all__ = ["Loading"]

_log = logging.getLogger(__name__)

# Matrices are laid out in groups of about this size. Between groups, progress is reported and `close` takes
# effect. A smaller model is loaded at once.
GROUP_BYTES = 64 << 20

# While one group is laid out, the disk reads this many of the next groups.
GROUPS_AHEAD = 2

# A file counts as being in memory if at least this share of it is.
WARM = 0.99

# A file on the disk up to this size is read within seconds; for a larger one the caller sees progress.
SOON_BYTES = 2 << 30

# The thread waits this many seconds for the first run before it begins without one.
PATIENCE = 1.0

# Seconds between two checks whether another process has laid the matrices out.
LOOK = 0.02

Groups = Sequence[Sequence[StoredMatrix]]


class Touchable(Protocol):
    """Memory that is reserved, but not yet allocated."""

    def touch(self) -> None:
        """Allocate all of it, and keep data that other threads write there meanwhile."""


class Loading:
    """The matrices of a backend until all of them are laid out.

    One thread computes and calls `ran`. Other threads may call `wait_loaded` at the same time.
    """

    def __init__(self, pool: _native.ThreadPool, isa: str) -> None:
        self._pool = pool
        self._isa = isa
        self._files = WeightFiles([])
        self._shared: SharedMemory | None = None
        self._stays_in_files = False
        self._partly: PartlyLoaded | None = None
        self._experts: ExpertMemory | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._may_begin = threading.Event()
        self._closing = threading.Event()
        self._fork_guard = ForkGuard("the model")

    def open(self, matrices: Sequence[StoredMatrix], size: int) -> SharedMemory | None:
        """Open the files of matrices -> their memory of `size` bytes if processes can share it, else None.

        Raises ModelError if a file cannot be opened.
        """
        self._files = WeightFiles(matrices)
        if self._files.first is not None:
            self._shared = SharedMemory.of(self._files.key(self._isa), size, self._files.first)
        return self._shared

    def is_shared(self, matrices: Sequence[StoredMatrix], size: int) -> bool:
        """Return whether another process has these matrices in memory that it shares. Raises as `open`."""
        shared = self.open(matrices, size)
        is_taken = shared is not None and shared.is_taken
        if shared is not None:
            shared.close()
        self._files, self._shared = WeightFiles([]), None
        return is_taken

    def stay_in_files(self, partly: PartlyLoaded) -> None:
        """Open the files of matrices that every run may read from there. Raises ModelError as `open` does."""
        self._files = WeightFiles(partly.matrices)
        self._partly = partly
        self._stays_in_files = True

    def keep_reading(self, experts: ExpertMemory) -> None:
        """Let every run read experts that are not in memory."""
        self._experts = experts

    def load(
        self,
        matrices: Sequence[StoredMatrix],
        untouched: Sequence[Touchable],
        growing: int,
        progress: ProgressCallback,
    ) -> None:
        """Make matrices ready to compute with, and allocate the memory of `untouched`.

        growing: bytes that caches will take later

        Raises ModelError if a file cannot be read, and OutOfMemoryError if memory runs out.
        """
        is_complete = self._shared is not None and self._shared.is_complete
        groups = [] if is_complete else list(_groups(matrices))
        self._files.attach([matrix for group in groups for matrix in group])
        if self._partly is not None:
            for part in untouched:
                part.touch()
            self._lay_out(self._pool, list(_groups(self._partly.begin(growing))), progress)
            self._files.read_only_requested()
            self._partly.read_ahead()
        elif is_complete or (len(groups) > 1 and self._is_there_soon(groups)):
            self._lay_out_behind(groups, untouched)
        else:
            for part in untouched:
                part.touch()
            self._lay_out(self._pool, groups, progress)
        progress(1.0)

    def ran(self, dims: Sequence[str]) -> None:
        """Record that a plan with these run-time dimensions has run.

        Raises ModelError if weights that it needed could not be read: FailedRowsError if only some rows did.
        """
        thread = self._thread
        if self._experts is not None:
            self._experts.check(dims)
        if self._stays_in_files:
            self._check()
        if self._partly is not None and (more := self._partly.adapt(self._pool)):
            self._lay_out(self._pool, [more], lambda share: None)
        if thread is not None:
            self._may_begin.set()
            self._check()
            if not thread.is_alive():
                self._thread = None

    def wait_loaded(self) -> None:
        """Wait until all matrices are laid out. Raises the thread's error, such as ModelError for a file."""
        thread = self._thread
        if thread is not None:
            self._may_begin.set()
            thread.join()
        self._check()

    def close(self) -> None:
        """Stop laying out matrices. This does nothing after a fork, because the child has no such thread."""
        if self._fork_guard.is_forked:
            return
        self._closing.set()
        self._may_begin.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._files = WeightFiles([])
        if self._partly is not None:
            self._partly.close()
        if self._experts is not None:
            self._experts.close()
        if self._shared is not None:
            self._shared.close()

    def _is_there_soon(self, groups: Groups) -> bool:
        """Return whether to compute directly with the files: in memory, or small with room for both forms."""
        num_bytes = sum(matrix.num_bytes for group in groups for matrix in group)
        is_small = num_bytes <= min(SOON_BYTES, available_memory() // 2)
        return is_small or self._files.are_in_memory(WARM)

    def _lay_out_behind(self, groups: Groups, untouched: Sequence[Touchable]) -> None:
        thread = threading.Thread(
            target=self._work, args=(groups, untouched), name="chaski-loading", daemon=True
        )
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # limits leave no room for its stack
            for part in untouched:
                part.touch()
            self._lay_out(self._pool, groups, lambda share: None)

    def _work(self, groups: Groups, untouched: Sequence[Touchable]) -> None:
        # A thread in native code while the interpreter shuts down would crash the process.
        atexit.register(self.close)
        self._may_begin.wait(PATIENCE)
        try:
            pool = _native.ThreadPool(max(1, self._pool.threads // 2))
            for part in untouched:
                part.touch()
            self._lay_out(pool, groups, lambda share: None)
        except Exception as error:
            self._failure = error  # for the next run
        finally:
            atexit.unregister(self.close)

    def _lay_out(self, pool: _native.ThreadPool, groups: Groups, progress: ProgressCallback) -> None:
        """Lay groups out. If memory runs out, as under `ulimit -v`, the other groups stay in the files."""
        try:
            self._lay_out_whole(pool, groups, progress)
        except OutOfMemoryError as error:
            _log.warning("%s: every batch reads the rest from the file, which is slower", error)
            self._stays_in_files = True

    def _lay_out_whole(self, pool: _native.ThreadPool, groups: Groups, progress: ProgressCallback) -> None:
        shared = self._shared
        if shared is None:
            self._fill(pool, groups, None, progress)
            return
        while not shared.lock():
            progress(shared.share)
            if self._closing.wait(LOOK):
                return
        try:
            if shared.is_complete:
                for group in groups:
                    for matrix in group:
                        matrix.target.set_laid_out()
                return
            # Other processes will read this memory, so its files must not have changed.
            self._files.check_unchanged()
            with shared.writing() as descriptor:
                is_complete = self._fill(pool, groups, descriptor, progress)
            self._files.check_unchanged()
            if is_complete:
                shared.seal()
        finally:
            shared.unlock()

    def _fill(
        self, pool: _native.ThreadPool, groups: Groups, shared: int | None, progress: ProgressCallback
    ) -> bool:
        """Lay groups out -> True if all are laid out, False if the backend was closed before."""
        total, done = max(1, sum(matrix.num_bytes for group in groups for matrix in group)), 0
        for ahead in groups[:GROUPS_AHEAD]:
            self._files.read_ahead(ahead)
        for index, group in enumerate(groups):
            if self._closing.is_set():
                return False
            for ahead in groups[index + GROUPS_AHEAD :][:1]:
                self._files.read_ahead(ahead)
            path = group[0].info.path
            try:
                _native.lay_out(pool, self._isa, [matrix.target for matrix in group], shared)
            except RuntimeError as error:
                raise unreadable(path, str(error)) from error
            except MemoryError:
                raise OutOfMemoryError(
                    f"memory ran out while the weights of {path} were laid out{address_space_note()}"
                ) from None
            done += sum(matrix.num_bytes for matrix in group)
            progress(done / total)
        return True

    def _check(self) -> None:
        self._files.check()
        if self._failure is not None:
            raise self._failure


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
