"""The tier of host memory: the blocks that were used last, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from chaski.runner.prefix.blocks import Block
from chaski.runner.prefix.pins import SHARE, Pins
from chaski.runner.prefix.use import TierUse

__all__ = ["MemoryTier"]


class MemoryTier:
    """Up to `max_bytes` of blocks. What was not used for the longest time goes first.

    Whoever uses a block uses all before it, later than itself: so a block never goes before those behind it.
    Those that `pins` hold stay, as far as they take half of the bytes.
    """

    def __init__(self, max_bytes: int, pins: Pins | None = None) -> None:
        self.max_bytes = max_bytes
        self.pins = Pins() if pins is None else pins
        self.num_bytes = self._num_tokens = 0
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._behind: dict[bytes, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def use(self) -> TierUse:
        """Tell how much is there. Callable from any thread."""
        return TierUse("memory", len(self._blocks), self._num_tokens, self.num_bytes, self.max_bytes)

    def names(self) -> list[bytes]:
        """Return the names of all blocks. Callable from any thread."""
        return list(self._blocks)

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
        if self.num_bytes > self.max_bytes:
            self._make_room()

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

    def _make_room(self) -> None:
        held = self.pins.held(self._size, self.max_bytes // SHARE) if self.pins else set()
        unused, excess = [], self.num_bytes - self.max_bytes
        for name, block in self._blocks.items():
            if excess <= 0:
                break
            if name not in held:
                unused.append(name)
                excess -= block.num_bytes
        for name in unused:
            self.drop(name)

    def _size(self, name: bytes) -> int:
        block = self._blocks.get(name)
        return 0 if block is None else block.num_bytes

    def clear(self) -> None:
        """Forget all blocks."""
        self._blocks.clear()
        self._behind.clear()
        self.num_bytes = self._num_tokens = 0
