"""The prompt blocks held by each replica, from their reports and from the prompts sent to them.

Blocks are numbers: the leading bits of their names in the prefix cache. Names are chained, so a replica that
holds a block has received all blocks before it. A collision of two prompts costs time but never gives a wrong
answer, because replicas compare full names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from random import Random

__all__ = ["BlockIndex"]

# Blocks recently sent to a replica may not be computed yet. They are kept for this many seconds even if the
# replica does not report them.
_ASSUMED_SECONDS = 60.0
# Maximum candidates per depth, and maximum depths, that `holders` returns.
_HOLDERS, _DEPTHS = 3, 3


class BlockIndex:
    """Maps blocks to the replicas that hold them, for the `max_blocks` most recently used of each replica.

    `random` chooses among replicas that hold the same blocks.
    """

    def __init__(self, max_blocks: int = 1 << 15, random: Random | None = None) -> None:
        self._max_blocks = max_blocks
        self._random = Random(0) if random is None else random
        self._holders: dict[int, list[int]] = {}
        self._blocks: dict[int, OrderedDict[int, float]] = {}

    def __len__(self) -> int:
        """The number of pairs of a block and a replica that holds it."""
        return sum(map(len, self._blocks.values()))

    def assume(self, replica: int, blocks: Sequence[int], now: float) -> None:
        """Record that a replica was sent a prompt with these blocks. `now` is in seconds."""
        held = self._blocks.setdefault(replica, OrderedDict())
        for block in blocks:
            if block not in held:
                self._holders.setdefault(block, []).append(replica)
            held[block] = now
            held.move_to_end(block)
        while len(held) > self._max_blocks:
            self._drop(replica, next(iter(held)))

    def report(self, replica: int, blocks: Iterable[int], now: float) -> None:
        """Record that a replica holds exactly these blocks, plus those sent to it recently."""
        held = self._blocks.setdefault(replica, OrderedDict())
        told = set(blocks)
        gone = [
            block for block, since in held.items() if block not in told and since < now - _ASSUMED_SECONDS
        ]
        for block in gone:
            self._drop(replica, block)
        for block in told:
            if len(held) >= self._max_blocks:
                break
            if block not in held:
                self._holders.setdefault(block, []).append(replica)
                held[block] = 0.0
                held.move_to_end(block, last=False)

    def forget(self, replica: int) -> None:
        """Remove a replica."""
        for block in list(self._blocks.get(replica, ())):
            self._drop(replica, block)
        self._blocks.pop(replica, None)

    def holders(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return replicas that hold a prefix of a prompt, with the number of prefix blocks.

        If many replicas hold the same prefix, a random sample is returned. Only the deepest prefixes count.
        """
        levels = []
        for block in blocks:
            holders = self._holders.get(block)
            if holders is None:
                break
            levels.append(holders)
        found: dict[int, int] = {}
        num_depths = 0
        widest = 0
        for depth in range(len(levels), 0, -1):
            holders = levels[depth - 1]
            if len(holders) <= widest:
                continue
            widest = len(holders)
            chosen = holders if widest <= _HOLDERS else self._random.sample(holders, _HOLDERS)
            for replica in chosen:
                found.setdefault(replica, depth)
            num_depths += 1
            if num_depths == _DEPTHS:
                break
        return found

    def _drop(self, replica: int, block: int) -> None:
        del self._blocks[replica][block]
        holders = self._holders[block]
        holders.remove(replica)
        if not holders:
            del self._holders[block]
