"""The tiers below the cells of an engine: blocks in host memory and in files.

A prompt takes the longest chain of blocks that the tiers hold, as far as copying is quicker than computing,
by the speeds measured so far.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter

from msgspec import Struct, field

from chaski.errors import ChaskiError
from chaski.kvcache import Extent, LeafCache
from chaski.runner.prefix import naming
from chaski.runner.prefix.block_calls import Blocks, block_number
from chaski.runner.prefix.block_files import FiledBlock
from chaski.runner.prefix.blocks import Block, KnownBlock, Part, room_of
from chaski.runner.prefix.buffers import Buffers
from chaski.runner.prefix.disk_tier import DiskTier
from chaski.runner.prefix.restored import Restored
from chaski.runner.prefix.speed import Speed
from chaski.runner.prefix.tree import PrefixTree
from chaski.runner.prefix.use import TierUse

__all__ = ["Capture", "FoundPrefix", "PrefixTiers", "TierCounts", "part_sizes"]

# Fewer tokens than this are computed again, which is quicker than keeping them.
_FEWEST = 16
# Part of the time of computing that a copy of a state may take.
_STATE_SHARE = 0.01


class TierCounts(Struct):
    """Totals since the model was loaded: tokens that came back by tier, seconds saved, blocks of no use."""

    tokens: dict[str, int] = field(default_factory=lambda: {"memory": 0, "disk": 0})
    saved_seconds: float = 0.0
    failed: int = 0


class Capture(Struct, frozen=True):
    """A block of a sequence whose rows lie in cells still, leaf by leaf.

    `ancestors` are the names of the blocks before it, the nearest first.
    """

    name: bytes
    before: bytes
    begin: int
    tokens: tuple[int, ...]
    extents: tuple[Sequence[Extent], ...]
    ancestors: Sequence[bytes]
    to_disk: bool


class _Arriving(Struct, frozen=True):
    """A block in memory whose bytes are complete when these copies are done."""

    block: Block
    copies: Sequence[Future[None]]
    to_disk: bool


class FoundPrefix(Struct, frozen=True):
    """The first `length` tokens of a prompt: `start` of them are in cells, the rest in `blocks`."""

    start: int
    length: int
    blocks: Sequence[KnownBlock]


class PrefixTiers:
    """Blocks of one model on their way between cells, memory and, where there is a `disk`, files.

    `leaves` are those of the engine's cache, and `tree` knows all blocks. `identity` stands for all that
    their numbers depend on, `origin` for each of these things by its name.
    """

    def __init__(
        self,
        leaves: Sequence[LeafCache],
        identity: bytes,
        tree: PrefixTree,
        disk: DiskTier | None,
        origin: Mapping[str, str] | None = None,
    ) -> None:
        self.tree = tree
        self.disk = disk
        self.origin = origin or {}
        self.counts = TierCounts()
        self.prefill = Speed() if disk is None else disk.prefill
        self._copying = Speed(4e9)
        self._buffers = Buffers()
        self._arriving: deque[_Arriving] = deque()  # in the order in which they were copied
        self._leaves = leaves
        self._identity = identity
        self._firsts: dict[tuple[str, ...], bytes] = {}

    def first_name(self, *parts: str) -> bytes:
        """Return the name before the first block of sequences that have these parts in common."""
        if parts not in self._firsts:
            if len(self._firsts) > 1000:
                self._firsts.clear()
            self._firsts[parts] = naming.first_name(self._identity, *parts)
        return self._firsts[parts]

    def find(self, first: bytes, tokens: Sequence[int], start: int, most: int) -> FoundPrefix | None:
        """Find the longest prefix of `tokens`, `most` of them at most, that is available beyond `start`.

        Returns None if no block helps, or if computing is faster.
        """
        if most - start < _FEWEST:
            return None
        if self.disk is not None:
            self.disk.refresh()
        chain, same = self.tree.lookup(first, tokens, self._tokens)
        self._touch([block.name for block in chain])
        length = min(most, same)
        while (least := self._restorable(chain, start, length)) < length:
            length = least
        blocks = [block for block in chain if start < block.end and block.begin < length]
        if length - start < _FEWEST or not self._pays(blocks, length - start):
            return None
        return FoundPrefix(start, length, blocks)

    def hold(self, chain: Sequence[bytes], seconds: float) -> None:
        """Hold the blocks of a chain, from its first block on, for that many seconds from their last use.

        They may exist already, or come later.
        """
        self.tree.pin(chain, seconds)
        self._touch(chain)

    def capture(
        self,
        sequence: int,
        tokens: Sequence[int],
        names: Sequence[bytes],
        begin: int,
        to_disk: bool,
        with_states: bool = False,
    ) -> Capture | None:
        """Note where the block of a sequence at `begin` lies, all of it or the rest, if it is worth keeping.

        `names` are those of the blocks before it, and the first name. `with_states` also keeps states that
        are otherwise not worth their bytes. The noted cells must be copied before anything else is computed.
        """
        own = tuple(tokens[begin : begin + naming.BLOCK])
        if len(own) < _FEWEST:
            return None
        before = names[begin // naming.BLOCK]
        name = naming.block_name(before, own)
        end = begin + len(own)
        extents = tuple(
            [
                each
                for each in leaf.held(sequence, begin, end)
                if with_states or self._is_kept(leaf, each, end)
            ]
            for leaf in self._leaves
        )
        known = self.tree.in_memory(name)
        wanted = [[(each.begin, each.end) for each in parts] for parts in extents]
        if known is not None and known.has_all(wanted):
            return None
        return Capture(name, before, begin, own, extents, names[begin // naming.BLOCK : 0 : -1], to_disk)

    def copy(self, captures: Iterable[Capture]) -> None:
        """Copy blocks out of cells, into memory and on their way to files.

        Their bytes may arrive later; files are written once they have.
        """
        for capture in captures:
            block, copies = self._copied(capture)
            self.tree.insert(block)
            self.tree.touch(capture.ancestors)
            self._arriving.append(_Arriving(block, copies, capture.to_disk))
        while self._arriving and all(copy.done() for copy in self._arriving[0].copies):
            self._take_arrived()

    def copied(self, capture: Capture) -> Block:
        """Copy a block out of cells, for the caller alone."""
        block, copies = self._copied(capture)
        for copy in copies:
            copy.result()
        return block

    def _copied(self, capture: Capture) -> tuple[Block, Sequence[Future[None]]]:
        """Copy a block out of cells -> it, and the copies of its parts that are not done yet."""
        started = perf_counter()
        copies: list[Future[None]] = []
        parts = tuple(
            tuple(self._read(index, extent, capture.begin, copies) for extent in extents)
            for index, extents in enumerate(capture.extents)
        )
        block = Block(capture.name, capture.before, capture.begin, capture.tokens, parts)
        if not copies:
            self._copying.measure(block.num_bytes, perf_counter() - started)
        return block, copies

    def _settle(self) -> None:
        """Wait for all bytes that are still to arrive."""
        while self._arriving:
            self._take_arrived()

    def _take_arrived(self) -> None:
        """Wait for the block that was copied first, and let a file be written of it."""
        arriving = self._arriving.popleft()
        try:
            for copy in arriving.copies:
                copy.result()
        except BaseException:
            self.tree.drop(arriving.block.name)
            raise
        if self.disk is not None and arriving.to_disk:
            self.disk.put(arriving.block)

    def read_named(self, name: bytes) -> Future[Block | None] | Block | None:
        """Return the block of a name, at once or sooner or later; None where no tier has it."""
        block = self.tree.get(name)
        return None if block is None else self.read(block)

    def take_in(self, blocks: Sequence[Block]) -> None:
        """Keep the blocks of a sequence in memory, each after the one before it."""
        for block in blocks:
            known = self.tree.in_memory(block.name)
            if known is None or not known.has_all(block.all_spans()):
                self.tree.insert(block)
        self.tree.touch(block.name for block in reversed(blocks))

    def in_memory(self) -> list[Block]:
        """Return the blocks in memory, the least recently used one first."""
        self._settle()
        return self.tree.blocks()

    def drop_end(self, names: Sequence[bytes]) -> None:
        """Forget blocks of a sequence, from the last one back to one that another sequence continues from."""
        for name in reversed(names):
            if self.tree.children(name):
                return
            self.tree.drop(name)
            filed = self.tree.in_file(name)
            if self.disk is not None and filed is not None:
                self.disk.drop(filed)

    def sizes(self, filed: FiledBlock) -> Sequence[Sequence[int]] | None:
        """Return the bytes of each part of a block, leaf by leaf; None for one of other layers."""
        return part_sizes(self._leaves, filed)

    def restorable(self, blocks: Sequence[KnownBlock]) -> int:
        """Return how many tokens of a sequence, whose blocks these are, can be restored with them."""
        length = blocks[-1].end if blocks else 0
        while (least := self._restorable(blocks, 0, length)) < length:
            length = least
        return length

    def _read(self, index: int, extent: Extent, block_begin: int, copies: list[Future[None]]) -> Part:
        """Copy a part of a block out of the cells of a leaf; unfinished copies join `copies`."""
        leaf, room = self._leaves[index], room_of(extent.begin, extent.end)
        is_whole = len(extent.cells) == room
        data = self._buffers.take(index, leaf.rows.num_bytes(room), is_whole)
        first = 0 if extent.is_state else extent.begin - block_begin
        copy = leaf.rows.read(extent.cells, data, first, room)
        if copy is not None:
            copies.append(copy)
        return Part(extent.begin, extent.end, data)

    def adopt(self, sequence: int, length: int, first_image: int | None) -> list[Extent | None]:
        """Make room in all leaves for the tokens up to `length`; return what has to be written.

        `first_image` is as `LeafCache.adopt` wants it.
        """
        return [leaf.adopt(sequence, length, first_image) for leaf in self._leaves]

    def read(self, block: KnownBlock) -> Future[Block | None] | Block | None:
        """Return a block, at once or sooner or later; None where it is not there any more."""
        self._settle()
        if isinstance(block, Block):
            return block
        assert self.disk is not None
        assert isinstance(block, FiledBlock)
        held = self.tree.in_memory(block.name)
        return (
            self.disk.read(block, self._buffers.take)
            if held is None or FiledBlock.of(held).parts != block.parts
            else held
        )

    def write(self, block: Block, wanted: Sequence[Extent | None]) -> list[int]:
        """Copy to cells what each leaf wants of a block -> the number of cells that it had for each."""
        started = perf_counter()
        each = zip(self._leaves, wanted, block.parts, strict=True)
        written = [
            sum(_write(leaf, extent, part, block.begin) for part in parts) for leaf, extent, parts in each
        ]
        self._copying.measure(block.num_bytes, perf_counter() - started)
        return written

    def count(self, found: FoundPrefix, restored: Restored) -> None:
        """Count a prefix that came back."""
        self.tree.touch(block.name for block in reversed(found.blocks))
        self.counts.tokens["memory"] += restored.memory
        self.counts.tokens["disk"] += restored.disk
        self.counts.saved_seconds += restored.saved_seconds

    def forget(self, block: KnownBlock) -> None:
        """Forget a block that cannot be used."""
        self.counts.failed += 1
        self.tree.drop(block.name)
        if self.disk is not None and isinstance(block, FiledBlock):
            self.disk.drop(block)

    def held(self) -> Blocks:
        """Return the whole blocks of all tiers. Callable from any thread."""
        names = self.tree.names()
        return Blocks(tuple(map(block_number, names)), len(names) * naming.BLOCK)

    def named(self, tokens: Sequence[int], *parts: str) -> Blocks:
        """Return the whole blocks of a prompt of sequences that have these parts in common."""
        _, *names = naming.chain_names(self.first_name(*parts), tokens)
        return Blocks(tuple(map(block_number, names)), len(tokens))

    def uses(self) -> tuple[TierUse, ...]:
        """Report what the tiers hold. Callable from any thread."""
        return (self.tree.use(), *(() if self.disk is None else (self.disk.use(),)))

    def set_busy(self, is_busy: bool) -> None:
        """Set whether the machine computes: files are then written more slowly, and not all of them."""
        if self.disk is not None:
            self.disk.set_busy(is_busy)
            if not is_busy:
                self._settle()
                self._write_put_off(self.disk)

    def close(self) -> None:
        """Let files be written, and forget the rest."""
        while self._arriving:
            with suppress(ChaskiError):  # where the device failed, there is nothing to write
                self._take_arrived()
        if self.disk is not None:
            self._write_put_off(self.disk)
            self.disk.close()
        self.tree.clear()

    def _write_put_off(self, disk: DiskTier) -> None:
        """Let blocks be written that found no room before, as far as memory still has them."""
        for name in disk.take_put_off():
            block = self.tree.in_memory(name)
            if block is not None:
                disk.put(block, has_room=True)

    def _tokens(self, block: KnownBlock) -> Sequence[int]:
        if isinstance(block, Block):
            return block.tokens
        assert self.disk is not None
        assert isinstance(block, FiledBlock)
        return self.disk.tokens(block)

    def _restorable(self, chain: Sequence[KnownBlock], start: int, length: int) -> int:
        least = length
        for index, leaf in enumerate(self._leaves):
            spans = sorted(
                (begin, min(end, length)) if begin < end else (begin, end)
                for block in chain
                for begin, end in block.spans(index)
                if begin < length or begin == end <= length
            )
            least = min(least, leaf.restorable(spans, start, length))
        return max(least, start)

    def _touch(self, names: Sequence[bytes]) -> None:
        latest = names[::-1]
        self.tree.renew_pins(names)
        self.tree.touch(latest)
        if self.disk is not None and names:
            self.disk.touch(latest)

    def _pays(self, blocks: Sequence[KnownBlock], num_tokens: int) -> bool:
        """Return whether it is quicker to copy these blocks than to compute that many tokens."""
        seconds = self._copying.seconds(sum(block.num_bytes for block in blocks))
        if self.disk is not None:
            in_files = sum(block.num_bytes for block in blocks if _tier(block) == "disk")
            seconds += self.disk.speed.seconds(in_files)
        return seconds < self.prefill.seconds(num_tokens)

    def _is_kept(self, leaf: LeafCache, extent: Extent, end: int) -> bool:
        """Return whether a part of a block that ends before `end` is worth its bytes.

        Rows are, and states where sequences and prompts end. Of other states one is kept for every stretch of
        tokens that takes a hundred times as long to compute as a state takes to restore.
        """
        if not extent.is_state or extent.ends_prompt or end % naming.BLOCK:
            return True
        num_bytes = leaf.rows.num_bytes(1)
        seconds = self._copying.seconds(num_bytes)
        if self.disk is not None:
            seconds += self.disk.speed.seconds(num_bytes)
        distance = 0.0 if self.prefill.rate is None else seconds / _STATE_SHARE * self.prefill.rate
        return (end // naming.BLOCK) % max(1, math.ceil(distance / naming.BLOCK)) == 0


def part_sizes(leaves: Sequence[LeafCache], filed: FiledBlock) -> Sequence[Sequence[int]] | None:
    """Return the bytes of each part of a block, leaf by leaf; None for one of other layers."""
    if len(filed.parts) != len(leaves):
        return None
    pairs = zip(leaves, filed.parts, strict=True)
    return [[leaf.rows.num_bytes(room_of(*span)) for span in spans] for leaf, spans in pairs]


def _write(leaf: LeafCache, wanted: Extent | None, part: Part, block_begin: int) -> int:
    """Copy the wanted cells of a part -> the number of cells."""
    if wanted is None or wanted.is_state != (part.begin == part.end):
        return 0
    room = room_of(part.begin, part.end)
    if wanted.is_state:
        if part.end == wanted.end:
            leaf.rows.write(wanted.cells, part.data, 0, room)
            return 1
        return 0
    begin, end = max(part.begin, wanted.begin), min(part.end, wanted.end)
    if begin >= end:
        return 0
    cells = wanted.cells[begin - wanted.begin : end - wanted.begin]
    leaf.rows.write(cells, part.data, begin - block_begin, room)
    return end - begin


def _tier(block: KnownBlock) -> str:
    return "disk" if isinstance(block, FiledBlock) else "memory"
