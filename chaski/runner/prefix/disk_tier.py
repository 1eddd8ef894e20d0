"""The tier of files: blocks that outlive the process, up to a number of bytes.

A thread writes files, reads their list, and removes the least recently used ones; computation never waits for
it. Several processes may use one folder. A missing, damaged or unwritable file costs one block, and never
fails a request.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import ChaskiError
from chaski.runner.prefix.block_files import (
    FiledBlock,
    Take,
    new_memory,
    read_block,
    read_tokens,
    write_block,
)
from chaski.runner.prefix.blocks import Block
from chaski.runner.prefix.folders import day_log, hold_file, make_folder, make_room, used_bytes
from chaski.runner.prefix.kept_speed import read_speed, write_speed
from chaski.runner.prefix.speed import Speed
from chaski.runner.prefix.tree import PrefixTree
from chaski.runner.prefix.use import TierUse

__all__ = ["DiskLimits", "DiskTier"]

_log = logging.getLogger(__name__)

# Blocks in memory that wait to be written, in bytes, and the names of those that found no room there.
_MAX_WAITING = 256 << 20
_MAX_PUT_OFF = 1 << 16
# While others compute, the thread writes for a quarter percent of a core's time, otherwise as fast as it can:
# taking a core for a moment delays all threads of a batch.
_PAUSES = 399
_LONGEST_PAUSE = 10.0
# After a write that failed, no other one is tried for this many seconds.
_PAUSE = 30.0
# Other processes write, too: their files are counted again after this many of our own.
_RECOUNT = 64
# A speed that differs by this share from the kept one replaces it.
_OTHER_SPEED = 0.1
# Errors of a process that has too few descriptors or too little memory to read an intact file.
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


class DiskLimits(Struct, frozen=True):
    """The most bytes of all files together, and the most that are written in a day."""

    max_bytes: int
    max_bytes_a_day: int


class DiskTier:
    """The blocks of one model in `folder`, which lies next to those of others in its parent.

    `sizes` returns the bytes of each part of a block, leaf by leaf. `describe` is kept in the folder for
    people. `prefill` is the speed of the model's prompts, at first as an earlier process kept it. `tree`
    learns which blocks have a file; the files of blocks that are pinned there are marked by their times.
    """

    def __init__(
        self,
        folder: Path,
        limits: DiskLimits,
        sizes: Callable[[FiledBlock], Sequence[Sequence[int]] | None],
        describe: str,
        tree: PrefixTree,
    ) -> None:
        self.folder = folder
        self.speed = Speed(1e9)
        self.prefill = Speed.recalled(read_speed(folder))
        self._kept_rate = self.prefill.rate
        self.num_failed = self.num_dropped = self.num_written = 0
        self._limits = limits
        self._sizes = sizes
        self._describe = describe
        self._tree = tree
        self._tokens: dict[bytes, tuple[int, ...]] = {}
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._has_work = threading.Condition(self._lock)
        self._waiting_bytes = 0
        self._put_off: dict[bytes, None] = {}
        self._is_closing = False
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._paused_until = 0.0
        self._files: dict[str, FiledBlock | None] = {}
        self._total: int | None = None
        self._num_since_count = 0
        self._listed_at: int | None = None
        self._looked_at = 0.0
        self._is_listed = threading.Event()
        self._readers: ThreadPoolExecutor | None = None
        self._thread = threading.Thread(target=self._run, name="prefix cache", daemon=True)
        self._submit(self._list)
        self._thread.start()

    def use(self) -> TierUse:
        """Return how much is stored."""
        blocks = self._tree.files()
        num_tokens = sum(block.end - block.begin for block in blocks)
        num_bytes = sum(block.num_bytes for block in blocks)
        return TierUse("disk", len(blocks), num_tokens, num_bytes, self._limits.max_bytes)

    def tokens(self, filed: FiledBlock) -> tuple[int, ...]:
        """Return the tokens of a block, none where its file is gone or damaged."""
        if filed.name not in self._tokens:
            try:
                self._tokens[filed.name] = read_tokens(self.folder, filed)
            except (OSError, ChaskiError) as error:
                self.drop(filed, error)
                return ()
        return self._tokens[filed.name]

    def refresh(self) -> None:
        """Notice, sooner or later, files that other processes have written. The first time waits."""
        if not self._is_listed.is_set():
            self._is_listed.wait(5.0)
        elif time.monotonic() - self._looked_at > 1.0:
            self._looked_at = time.monotonic()
            self._submit(self._list)

    def read(self, filed: FiledBlock, take: Take = new_memory) -> Future[Block | None]:
        """Read a block in another thread; its result is None if reading fails.

        Parts are read into what `take` gives.
        """
        if self._readers is None:
            self._readers = ThreadPoolExecutor(2, "prefix cache reader")
        return self._readers.submit(self._read, filed, take)

    def put(self, block: Block, has_room: bool = False) -> None:
        """Write a block in the background; it is postponed if too much waits, unless it `has_room`."""
        filed = FiledBlock.of(block)
        if self._tree.in_file(block.name) is not None:
            return
        with self._lock:
            if not has_room and self._waiting_bytes + block.num_bytes > _MAX_WAITING:
                if len(self._put_off) < _MAX_PUT_OFF:
                    self._put_off[block.name] = None
                return
            self._waiting_bytes += block.num_bytes
        self._submit(lambda: self._write(block, filed))

    def take_put_off(self) -> list[bytes]:
        """Return the names of the blocks that were put off, in their order, and forget them."""
        with self._lock:
            names = list(self._put_off)
            self._put_off.clear()
        return names

    def touch(self, names: Iterable[bytes]) -> None:
        """Count blocks as used now, each one and then those before it."""
        listed = list(names)
        self._submit(lambda: self._touch(listed))

    def drop(self, filed: FiledBlock, error: Exception | None = None) -> None:
        """Forget a block and its file, if it exists.

        If the process is short of descriptors or memory, the file stays: it is intact.
        """
        if error is not None and not isinstance(error, FileNotFoundError):
            self.num_failed += 1
            _log.warning("prefix cache: a block is dropped: %s", error)
        is_known = self._forget(filed.name)
        is_short = isinstance(error, OSError) and error.errno in _SHORTAGES
        if is_known and not is_short:
            with suppress(OSError):
                os.unlink(self.folder / filed.file_name)

    def set_busy(self, is_busy: bool) -> None:
        """Set whether computation has priority over writing files."""
        if is_busy == self._is_idle.is_set():
            if is_busy:
                self._is_idle.clear()
            else:
                self._is_idle.set()

    def settle(self, seconds: float) -> bool:
        """Wait until all is written, or for that many seconds; return whether it is."""
        is_done = threading.Event()
        return self._submit(is_done.set) and is_done.wait(seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Write what waits, for that many seconds at most."""
        self.set_busy(False)
        self._submit(self._keep_speed)
        self.settle(seconds)
        with self._lock:
            self._is_closing = True
            self._work.clear()
            self._has_work.notify()
        if self._readers is not None:
            self._readers.shutdown(wait=True, cancel_futures=True)
        self._thread.join(seconds)

    def _submit(self, job: Callable[[], None]) -> bool:
        """Let the thread do a job; return False when it takes no more."""
        with self._lock:
            if not self._is_closing:
                self._work.append(job)
                self._has_work.notify()
            return not self._is_closing

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._work and not self._is_closing:
                    self._has_work.wait()
                if not self._work:
                    return
                job = self._work.popleft()
            try:
                job()
            except Exception:
                _log.exception("prefix cache: a step of its thread failed")

    def _list(self) -> None:
        """Read the names of the files, if the folder has changed."""
        try:
            changed = os.stat(self.folder).st_mtime_ns
            if changed != self._listed_at:
                self._listed_at = changed
                self._take_list(set(os.listdir(self.folder)))
        except OSError:
            self._listed_at = None
            self._take_list(set())
        self._is_listed.set()

    def _take_list(self, names: set[str]) -> None:
        for name in self._files.keys() - names:
            filed = self._files.pop(name)
            if filed is not None:
                self._forget(filed.name)
        for name in names - self._files.keys():
            self._files[name] = filed = self._sized(FiledBlock.parse(name))
            if filed is not None:
                self._tree.insert_file(filed)

    def _sized(self, filed: FiledBlock | None) -> FiledBlock | None:
        """Return the block with its size, unless it has other parts than those of this model."""
        sizes = None if filed is None else self._sizes(filed)
        if filed is None or sizes is None:
            return None
        return replace(filed, num_bytes=sum(map(sum, sizes)))

    def _forget(self, name: bytes) -> bool:
        """Forget that there is a file of a block; return whether it was known."""
        self._tokens.pop(name, None)
        return self._tree.drop_file(name)

    def _read(self, filed: FiledBlock, take: Take) -> Block | None:
        sizes = self._sizes(filed)
        if sizes is None:
            return None
        started = time.perf_counter()
        try:
            block = read_block(self.folder, filed, sizes, take)
            self.speed.measure(block.num_bytes, time.perf_counter() - started)
            return block
        except (OSError, ChaskiError) as error:
            self.drop(filed, error)
            return None

    def _write(self, block: Block, filed: FiledBlock) -> None:
        begun = time.thread_time()
        try:
            if time.monotonic() >= self._paused_until and self._may_write(filed):
                self._write_now(block, filed)
        except OSError as error:
            self._paused_until = time.monotonic() + _PAUSE
            self.num_failed += 1
            _log.warning("prefix cache: %s: %s; answers do not need it", self.folder, error.strerror or error)
        finally:
            with self._lock:
                self._waiting_bytes -= block.num_bytes
            pause = _PAUSES * (time.thread_time() - begun)
            self._is_idle.wait(min(pause, _LONGEST_PAUSE))

    def _may_write(self, filed: FiledBlock) -> bool:
        """Return whether it can be found again, after an existing block, and the day has room for it."""
        has_way = filed.begin == 0 or self._tree.in_file(filed.before) is not None
        if not has_way or filed.num_bytes > self._limits.max_bytes:
            self.num_dropped += 1
            return False
        return True

    def _write_now(self, block: Block, filed: FiledBlock) -> None:
        make_folder(self.folder, self._describe)
        with day_log(self.folder.parent) as day:
            if day.num_bytes + filed.num_bytes > self._limits.max_bytes_a_day:
                self.num_dropped += 1
                return
            day.num_bytes += write_block(self.folder, block)
        self.num_written += filed.num_bytes
        if seconds := self._tree.pinned_seconds(block.name):
            hold_file(self.folder / filed.file_name, time.time_ns(), seconds)
        self._files[filed.file_name] = filed
        self._tree.insert_file(filed)
        if self._total is None or self._num_since_count >= _RECOUNT:
            self._total, self._num_since_count = used_bytes(self.folder.parent), 0
        else:
            self._total, self._num_since_count = self._total + filed.num_bytes, self._num_since_count + 1
        if self._total > self._limits.max_bytes:
            self._total = make_room(self.folder.parent, self._limits.max_bytes)
            self._list()
        self._keep_speed()

    def _keep_speed(self) -> None:
        """Keep the speed of prompts for the next process, if it differs from the kept one."""
        rate, kept = self.prefill.rate, self._kept_rate
        if rate is not None and (kept is None or abs(rate - kept) > _OTHER_SPEED * kept):
            write_speed(self.folder, rate)
            self._kept_rate = rate

    def _touch(self, names: Sequence[bytes]) -> None:
        now = time.time_ns()
        for place, name in enumerate(names):
            filed = self._tree.in_file(name)
            if filed is not None:
                hold_file(self.folder / filed.file_name, now + place * 1000, self._tree.pinned_seconds(name))
