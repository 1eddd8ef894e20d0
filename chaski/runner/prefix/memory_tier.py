"""The tier of host memory: the blocks that were used last, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from chaski.runner.prefix.blocks import Block
from chaski.runner.prefix.use import TierUse

__all__ = ["MemoryTier"]


class MemoryTier:
    """Up to `max_bytes` of blocks. What was not used for the longest time goes first.

    Whoever uses a block uses all before it, later than itself: so a block never goes before those behind it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = self._num_tokens = 0
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._behind: dict[bytes, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def use(self) -> TierUse:
        """Tell how much is there. Callable from any thread."""
        return TierUse("memory", len(self._blocks), self._num_tokens, self.num_bytes, self.max_bytes)

    def get(self, name: bytes) -> Block | None:
        """Return a block; None if it is not there."""
        return self._blocks.get(name)

    def behind(self, name: bytes) -> Sequence[Block]:
        """Return the blocks that come directly behind a name, the oldest first."""
        return [self._blocks[each] for each in self._behind.get(name, ())]

    def put(self, block: Block) -> None:
        """Keep a block, in place of one of the same name. It may push out others, or be too large itself."""
        self.drop(block.name)
        if block.num_bytes > self.max_bytes:
            return
        self._blocks[block.name] = block
        self._behind.setdefault(block.before, []).append(block.name)
        self.num_bytes += block.num_bytes
        self._num_tokens += len(block.tokens)
        while self.num_bytes > self.max_bytes:
            self.drop(next(iter(self._blocks)))

    def drop(self, name: bytes) -> None:
        """Forget a block, if it is there."""
        block = self._blocks.pop(name, None)
        if block is not None:
            self.num_bytes -= block.num_bytes
            self._num_tokens -= len(block.tokens)
            beside = self._behind[block.before]
            beside.remove(name)
            if not beside:
                del self._behind[block.before]

    def touch(self, names: Iterable[bytes]) -> None:
        """Count blocks as used now: each one, and then those before it, in this order."""
        for name in names:
            if name in self._blocks:
                self._blocks.move_to_end(name)

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()
        self._behind.clear()
        self.num_bytes = self._num_tokens = 0
