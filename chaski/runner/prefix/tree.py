"""The tree of the prefix cache: which blocks of prompts a model has, in memory and in files.

Each block is a node below the block before it. The root of a prompt is the name before its first block
(`naming.first_name`), so prompts of different owners never meet.

    lookup   the path of blocks that a prompt begins with
    insert   a block, in memory or in a file
    pin      the blocks of a path, for a time: they are evicted last
    evict    blocks from memory when it is full, the least recently used first

The bytes of files are the business of `DiskTier`, which also removes the files that are too many.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from chaski.runner.prefix import naming
from chaski.runner.prefix.block_files import FiledBlock
from chaski.runner.prefix.blocks import Block, KnownBlock
from chaski.runner.prefix.use import TierUse

__all__ = ["LONGEST", "SHARE", "PrefixTree"]

LONGEST = 3600.0
"""The longest time, in seconds, that a block may be pinned after its last use."""

SHARE = 2
"""Pinned blocks take at most 1 / `SHARE` of the bytes in memory, and of those in files."""

# The most names that are pinned: a million tokens.
_MOST_PINS = 4096
# The most blocks in files that are compared with the end of a prompt.
_MOST_COMPARED = 4


class _Pin(Struct, frozen=True):
    seconds: float
    until: float


class PrefixTree:
    """Blocks by their names, and by the block before them. Safe to use from several threads.

    max_bytes: of the blocks in memory.
    clock: returns the time of pins in seconds. If it is set back, a pin lasts for its seconds from then.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.max_bytes = max_bytes
        self.clock = clock
        self.num_bytes = self._num_tokens = 0
        self._lock = threading.RLock()
        # The least recently used first, and each block before those that it comes after.
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._files: dict[bytes, FiledBlock] = {}
        self._children: dict[bytes, dict[bytes, None]] = {}
        # In the order of `_blocks`; also of blocks that are yet to come.
        self._pins: OrderedDict[bytes, _Pin] = OrderedDict()

    # Lookup

    def lookup(
        self, first: bytes, tokens: Sequence[int], tokens_of: Callable[[KnownBlock], Sequence[int]]
    ) -> tuple[list[KnownBlock], int]:
        """Return the path of blocks that holds the longest beginning of `tokens`, and its length in tokens.

        The last block may hold more than that. `tokens_of` returns the tokens of a block.
        """
        path: list[KnownBlock] = []
        name = first
        for begin in range(0, len(tokens) - naming.BLOCK + 1, naming.BLOCK):
            following = naming.block_name(name, tokens[begin : begin + naming.BLOCK])
            block = self.get(following)
            if block is None or block.begin != begin:
                break
            path.append(block)
            name = following
        length = len(path) * naming.BLOCK
        rest = tokens[length : length + naming.BLOCK]
        best, most = None, 0
        for block in self.children(name):
            same = _common(tokens_of(block), rest) if block.begin == length else 0
            if same > most:
                best, most = block, same
        return (path if best is None else [*path, best]), length + most

    def get(self, name: bytes) -> KnownBlock | None:
        """Return a block, from memory if possible; None if it is unknown."""
        with self._lock:
            return self._blocks.get(name) or self._files.get(name)

    def in_memory(self, name: bytes) -> Block | None:
        """Return a block in memory; None if it is not there."""
        with self._lock:
            return self._blocks.get(name)

    def in_file(self, name: bytes) -> FiledBlock | None:
        """Return a block in a file; None if no file has it."""
        with self._lock:
            return self._files.get(name)

    def children(self, name: bytes) -> list[KnownBlock]:
        """Return the blocks directly after a name: the newest in memory first, then a few in files."""
        with self._lock:
            names = list(self._children.get(name, ()))
            held: list[KnownBlock] = [self._blocks[each] for each in reversed(names) if each in self._blocks]
            filed = [self._files[each] for each in names if each not in self._blocks]
            return held + filed[-_MOST_COMPARED:]

    def names(self) -> list[bytes]:
        """Return the names of all blocks."""
        with self._lock:
            return list({**self._blocks, **self._files})

    def blocks(self) -> list[Block]:
        """Return all blocks in memory, the least recently used one first."""
        with self._lock:
            return list(self._blocks.values())

    def pins(self) -> list[tuple[bytes, float]]:
        """Return the names that are pinned now, each with the seconds from its last use."""
        with self._lock:
            found = [(name, self.pinned_seconds(name)) for name in self._pins]
            return [(name, seconds) for name, seconds in found if seconds]

    def files(self) -> list[FiledBlock]:
        """Return all blocks in files."""
        with self._lock:
            return list(self._files.values())

    def use(self) -> TierUse:
        """Return how much is in memory."""
        with self._lock:
            return TierUse("memory", len(self._blocks), self._num_tokens, self.num_bytes, self.max_bytes)

    # Insert and remove

    def insert(self, block: Block) -> None:
        """Keep a block in memory, instead of one of its name and of blocks that are the beginning of it.

        Blocks that memory has no room for any more are evicted; a block that is too large for it is not kept.
        """
        with self._lock:
            self.drop(block.name)
            if block.num_bytes <= self.max_bytes:
                self._blocks[block.name] = block
                siblings = self._children.setdefault(block.before, {})
                siblings.pop(block.name, None)
                siblings[block.name] = None  # the newest one
                self.num_bytes += block.num_bytes
                self._num_tokens += len(block.tokens)
                self._evict()
            for name in list(self._children.get(block.before, ())):
                other = self._blocks.get(name)
                if other is not None and other.is_beginning_of(block):
                    self.drop(name)

    def insert_file(self, filed: FiledBlock) -> None:
        """Note that there is a file of a block."""
        with self._lock:
            self._files[filed.name] = filed
            self._children.setdefault(filed.before, {})[filed.name] = None

    def drop(self, name: bytes) -> None:
        """Drop a block from memory."""
        with self._lock:
            block = self._blocks.pop(name, None)
            if block is not None:
                self.num_bytes -= block.num_bytes
                self._num_tokens -= len(block.tokens)
                self._unlink(block)

    def drop_file(self, name: bytes) -> bool:
        """Forget the file of a block; return whether it was known."""
        with self._lock:
            filed = self._files.pop(name, None)
            if filed is not None:
                self._unlink(filed)
            return filed is not None

    def clear(self) -> None:
        """Drop all blocks from memory."""
        with self._lock:
            for name in list(self._blocks):
                self.drop(name)

    def _unlink(self, block: KnownBlock) -> None:
        """Remove a block from those after its parent, if neither memory nor a file has it."""
        if self.get(block.name) is None:
            siblings = self._children[block.before]
            del siblings[block.name]
            if not siblings:
                del self._children[block.before]

    # Pin

    def pin(self, path: Sequence[bytes], seconds: float) -> None:
        """Pin the blocks of a path from its root for `seconds` from their last use, `LONGEST` at most.

        They count as used now, even those not stored yet. A pin that lasts longer stays unchanged.
        """
        with self._lock:
            now = self.clock()
            for name in reversed(path):
                longest = min(LONGEST, max(seconds, self.pinned_seconds(name)))
                self._pins[name] = _Pin(longest, now + longest)
                self._pins.move_to_end(name)
            while len(self._pins) > _MOST_PINS:
                self._pins.popitem(last=False)

    def renew_pins(self, path: Sequence[bytes]) -> None:
        """Count the pinned blocks of a path as used now."""
        with self._lock:
            for name in reversed(path) if self._pins else ():
                seconds = self.pinned_seconds(name)
                if seconds:
                    self._pins[name] = _Pin(seconds, self.clock() + seconds)
                    self._pins.move_to_end(name)

    def pinned_seconds(self, name: bytes) -> float:
        """Return for how many seconds from its last use a block is pinned; 0 if it is not."""
        with self._lock:
            pin = self._pins.get(name)
            return 0.0 if pin is None or pin.until <= self.clock() else pin.seconds

    def pinned(self, max_bytes: int) -> set[bytes]:
        """Return the names that are pinned now. The oldest pins do not count beyond `max_bytes` in memory."""
        found: set[bytes] = set()
        with self._lock:
            now, total = self.clock(), 0
            for name, pin in reversed(self._pins.items()):
                if pin.until > now + pin.seconds:  # the clock was set back
                    self._pins[name] = _Pin(pin.seconds, now + pin.seconds)
                if self.pinned_seconds(name):
                    block = self._blocks.get(name)
                    total += 0 if block is None else block.num_bytes
                    if total > max_bytes:
                        break
                    found.add(name)
        return found

    # Evict

    def touch(self, names: Iterable[bytes]) -> None:
        """Count blocks in memory as used now: each one, then the one before it, in this order.

        So a block is never evicted before those after it.
        """
        with self._lock:
            for name in names:
                if name in self._blocks:
                    self._blocks.move_to_end(name)

    def _evict(self) -> None:
        """Drop the least recently used blocks that are not pinned, until the others have room in memory."""
        excess = self.num_bytes - self.max_bytes
        if excess <= 0:
            return
        pinned = self.pinned(self.max_bytes // SHARE)
        unused = []
        for name, block in self._blocks.items():
            if excess <= 0:
                break
            if name not in pinned:
                excess -= block.num_bytes
                unused.append(name)
        for name in unused:
            self.drop(name)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many of the first elements are the same."""
    count = min(len(a), len(b))
    return next((i for i in range(count) if a[i] != b[i]), count)
