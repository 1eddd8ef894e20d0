"""A prefix on its way from the tiers to the cells of a slot, a part of it between any two batches."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from math import isfinite
from time import perf_counter

from msgspec import Struct

from chaski.chat.image_rows import attended_in
from chaski.kvcache import Extent
from chaski.runner.engine.sequence import Sequence
from chaski.runner.prefix.blocks import Block, KnownBlock
from chaski.runner.prefix.restored import Restored
from chaski.runner.prefix.slots import Slot
from chaski.runner.prefix.tiers import FoundPrefix, PrefixTiers

__all__ = ["BlockMissing", "Restoration"]

# Blocks that are read ahead, and the seconds after which a read counts as failed.
_AHEAD = 4
_PATIENCE = 10.0


class BlockMissing(Exception):  # noqa: N818, only the prefix cache sees it
    """A block is gone, or took too long."""


class _Read(Struct, frozen=True):
    block: KnownBlock
    result: Future[Block | None] | Block | None
    started: float


class Restoration:
    """The prefix `found` for `sequence`, which has `slot` and waits for it.

    The slot holds the tokens before it. The restored tokens have room but no content until it is done.
    """

    def __init__(self, tiers: PrefixTiers, sequence: Sequence, slot: Slot, found: FoundPrefix) -> None:
        self.sequence = sequence
        self.slot = slot
        self.found = found
        self._tiers = tiers
        self._wanted: list[Extent | None] | None = None
        self._missing: list[int] = []
        self._unread = deque(found.blocks)
        self._reads: deque[_Read] = deque()
        self._started = perf_counter()
        self._by_tier = {"memory": 0, "disk": 0}

    def report(self) -> Restored:
        """Report what came back, once all of it has."""
        computing = self._tiers.prefill.seconds(self.found.length - self.found.start)
        seconds = perf_counter() - self._started
        saved = max(0.0, computing - seconds) if isfinite(computing) else 0.0
        positions = range(self.found.start, self.found.length)
        return Restored(self._by_tier["memory"], self._by_tier["disk"], seconds, saved, positions)

    def advance(self, max_bytes: int) -> bool:
        """Copy available blocks, about `max_bytes` of them -> whether that was the last.

        Nothing may be computed meanwhile. Raises BlockMissing.
        """
        if self._wanted is None:
            self._wanted = self._adopt()
            self._missing = [0 if extent is None else len(extent.cells) for extent in self._wanted]
        while max_bytes > 0:
            self._read_ahead()
            if not self._reads:
                if any(self._missing):  # a part has disappeared
                    raise BlockMissing
                self._tiers.count(self.found, self.report())
                return True
            block = self._first()
            if block is None:
                return False
            written = self._tiers.write(block, self._wanted)
            self._missing = [left - count for left, count in zip(self._missing, written, strict=True)]
            max_bytes -= block.num_bytes
        return False

    def _adopt(self) -> list[Extent | None]:
        """Make room for the restored tokens."""
        attended = attended_in(self.sequence.images, range(self.found.length))
        is_missing = bool(attended) and attended[-1].positions.start >= self.found.start
        first = attended[0].positions.start if is_missing else None
        return self._tiers.adopt(self.slot.index, self.found.length, first)

    def wait(self, seconds: float) -> None:
        """Wait for the next block, if it is being read, but not longer."""
        result = self._reads[0].result if self._reads else None
        if isinstance(result, Future):
            try:
                result.exception(seconds)
            except TimeoutError:
                return

    def _read_ahead(self) -> None:
        while self._unread and len(self._reads) < _AHEAD:
            block = self._unread.popleft()
            self._reads.append(_Read(block, self._tiers.read(block), perf_counter()))

    def _first(self) -> Block | None:
        """Return the next block if it is ready. Raises BlockMissing."""
        read = self._reads[0]
        block = read.result
        tier = "memory"
        if isinstance(block, Future):
            if not block.done():
                if perf_counter() - read.started > _PATIENCE:
                    self._tiers.forget(read.block)
                    raise BlockMissing
                return None
            block = None if block.exception() else block.result()
            tier = "disk"
        if block is None or not self._is_expected(block):
            self._tiers.forget(read.block)
            raise BlockMissing
        if tier == "disk":
            self._tiers.tree.insert(block)
        self._reads.popleft()
        first, last = max(block.begin, self.found.start), min(block.end, self.found.length)
        self._by_tier[tier] += last - first
        return block

    def _is_expected(self, block: Block) -> bool:
        """Return whether a block holds the sequence's tokens at its position."""
        end = min(block.end, self.found.length)
        return list(block.tokens[: end - block.begin]) == self.sequence.tokens[block.begin : end]
