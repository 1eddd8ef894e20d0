"""The prefix cache: the slots of an engine together with their cells."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

from chaski.chat.groups import Groups, not_inside
from chaski.chat.image_rows import extent
from chaski.errors import NotSupportedError
from chaski.kvcache import Cache
from chaski.runner.engine.sequence import Sequence
from chaski.runner.prefix import following, naming
from chaski.runner.prefix.blocks import Block
from chaski.runner.prefix.following import Following
from chaski.runner.prefix.restoration import Restoration
from chaski.runner.prefix.slots import Placement, Policy, Slot, place, shared_prefix
from chaski.runner.prefix.tiers import Capture, FoundPrefix, PrefixTiers

__all__ = ["PrefixCache", "length_to_keep"]


class PrefixCache:
    """`parallel` slots. Each slot lists the tokens that the cache holds for it.

    `policy` decides how prompts reuse the cells of others; None turns reuse off. `tiers` keep it
    beyond the cells. `last_used` is that of the slot that was taken last.
    """

    def __init__(
        self, cache: Cache, parallel: int, policy: Policy | None, tiers: PrefixTiers | None = None
    ) -> None:
        self.slots = [Slot(index) for index in range(parallel)]
        self.policy = policy
        self.tiers = tiers
        self._cache = cache
        self._captures: list[Capture] = []
        self.last_used = 0

    def start(self, sequence: Sequence) -> Slot | Restoration | None:
        """Start a sequence with the prefix that slots hold -> its slot; None while no slot is free.

        If the tiers hold more of it, a restoration is returned, which has to end before the sequence starts.
        """
        placement = self._placement(sequence)
        if placement is None:
            return None
        source, slot, length = placement
        # The last token of the prompt is always computed: the answer begins with its outputs.
        length = not_inside(min(length, len(sequence.tokens) - 1), sequence.groups)
        if length and source is not slot:
            self._cache.copy_prefix(source.index, slot.index, length)
            slot.continue_from(source, length)
        self.keep(slot, length, sequence.groups)
        self.last_used += 1
        slot.last_used = self.last_used
        slot.cache_salt, slot.adapter_key = sequence.cache_salt, sequence.adapter_key
        self._hold(sequence)
        found = self._find(sequence, slot)
        if found is not None:
            assert self.tiers is not None
            slot.is_free = False
            return Restoration(self.tiers, sequence, slot, found)
        sequence.start(slot)
        slot.is_free = False
        return slot

    def reserve(self, member: Sequence) -> None:
        """Give a free slot to a sequence that begins when another one is forked."""
        slot = min((slot for slot in self.slots if slot.is_free), key=lambda slot: slot.last_used)
        self.keep(slot, 0, member.groups)
        self.last_used += 1
        slot.last_used = self.last_used
        slot.cache_salt, slot.adapter_key = member.cache_salt, member.adapter_key
        member.start(slot)
        slot.is_free = False

    def fork(self, sequence: Sequence, source: Slot) -> None:
        """Let a sequence continue after the tokens of another slot, whose cells it shares."""
        slot, length = sequence.slot, len(source.tokens)
        self._cache.copy_prefix(source.index, slot.index, length)
        slot.continue_from(source, length)
        self.keep(slot, length, sequence.groups)
        sequence.forked()

    def follow(self, sequence: Sequence, others: Iterable[tuple[Sequence, Slot]]) -> Following | None:
        """Find the one of `others` that is computing more of the prompt of a sequence than slots hold."""
        placement = self._placement(sequence)
        if placement is None or self.policy is None or not sequence.can_take_over:
            return None
        found, held = None, placement.length
        for leader, slot in others:
            is_ahead = len(leader.tokens) - len(slot.tokens) >= following.LEAST and leader.can_take_over
            if not is_ahead or slot.shifted_at is not None or _owner(leader) != _owner(sequence):
                continue
            shared = shared_prefix(leader.tokens, leader.groups, sequence.tokens, sequence.groups)
            length = not_inside(min(shared, len(sequence.tokens) - 1), sequence.groups)
            if length - held >= following.LEAST and (found is None or length > found.length):
                found = Following(sequence, leader, slot, length)
        return found

    def finish(self, restoration: Restoration) -> None:
        """Start the sequence of a restoration that is done."""
        sequence, slot, length = restoration.sequence, restoration.slot, restoration.found.length
        slot.tokens = sequence.tokens[:length]
        self._names(slot, length)
        slot.num_kept = length // naming.BLOCK
        sequence.restored = restoration.report()
        sequence.start(slot)

    def give_up(self, restoration: Restoration) -> None:
        """Free the slot of a restoration that is not done."""
        self.forget([restoration.slot])
        restoration.slot.is_free = True

    def note(self, sequence: Sequence) -> None:
        """Note the blocks that a sequence completes in the current batch, to keep them afterwards."""
        slot = sequence.slot
        length = self._length_to_keep(sequence)
        if length // naming.BLOCK > slot.num_kept:
            names = self._names(slot, length)
            for begin in range(slot.num_kept * naming.BLOCK, length - naming.BLOCK + 1, naming.BLOCK):
                self._capture(sequence, names, begin)
            slot.num_kept = length // naming.BLOCK

    def note_end(self, sequence: Sequence) -> None:
        """Note the last block of a sequence that ended."""
        length = self._length_to_keep(sequence)
        slot = sequence.slot
        if length > slot.num_kept * naming.BLOCK:
            names = self._names(slot, length)
            for begin in range(slot.num_kept * naming.BLOCK, length, naming.BLOCK):
                self._capture(sequence, names, begin, length)
            slot.num_kept = length // naming.BLOCK

    @property
    def has_noted(self) -> bool:
        """True if there is something for `keep_noted`."""
        return bool(self._captures)

    @property
    def must_keep(self) -> bool:
        """True if the noted blocks may be lost when another batch is computed."""
        return bool(self._captures) and self._cache.overwrites

    def keep_noted(self) -> None:
        """Copy the noted blocks to the tiers, after their batch was computed and before the next one is.

        It may wait for several batches, unless it `must_keep`.
        """
        captures, self._captures = self._captures, []
        if captures and self.tiers is not None:
            self.tiers.copy(captures)

    def drop_noted(self) -> None:
        """Forget the noted blocks: they may not have been computed."""
        self._captures = []

    def block(self, names: list[bytes], tokens: list[int], begin: int) -> Future[Block | None] | Block | None:
        """Return the block of `tokens` at `begin`, out of the cells of a slot or from the tiers.

        `names` are those of the blocks before it, and the first name. It is None if the block is stored
        nowhere. Nothing may be computed meanwhile.
        """
        assert self.tiers is not None
        wanted = tokens[: begin + naming.BLOCK]
        for slot in self.slots:
            is_held = slot.tokens[: slot.shifted_at][: len(wanted)] == wanted
            if is_held and slot.names[:1] == names[:1]:
                capture = self.tiers.capture(slot.index, wanted, names, begin, False, with_states=True)
                if capture is not None:
                    return self.tiers.copied(capture)
        return self.tiers.read_named(naming.block_name(names[begin // naming.BLOCK], wanted[begin:]))

    def _length_to_keep(self, sequence: Sequence) -> int:
        """Return how many tokens of a sequence any other sequence would compute the same."""
        return 0 if self.tiers is None else length_to_keep(sequence.slot)

    def _capture(self, sequence: Sequence, names: list[bytes], begin: int, end: int | None = None) -> None:
        assert self.tiers is not None
        slot = sequence.slot
        self._hold_behind(sequence, names, begin, end)
        capture = self.tiers.capture(slot.index, slot.tokens[:end], names, begin, sequence.may_store)
        if capture is not None:
            self._captures.append(capture)

    def _hold(self, sequence: Sequence) -> None:
        """Hold the whole blocks that a sequence asks to hold."""
        if self.tiers is None:
            sequence.holds = ()
        if not sequence.holds or self.tiers is None:
            return
        longest = max(length for length, _ in sequence.holds)
        first = self.tiers.first_name(sequence.cache_salt, sequence.adapter_key)
        chain = naming.chain_names(first, sequence.tokens[:longest])
        for length, seconds in sequence.holds:
            self.tiers.hold(chain[1 : length // naming.BLOCK + 1], seconds)

    def _hold_behind(self, sequence: Sequence, names: list[bytes], begin: int, end: int | None) -> None:
        """Hold the block at `begin`, which may have tokens of the answer, if the held tokens end in it."""
        assert self.tiers is not None
        seconds = max((each for length, each in sequence.holds if length > begin), default=0)
        if seconds:
            tokens = sequence.slot.tokens[begin : begin + naming.BLOCK]
            before = names[: begin // naming.BLOCK + 1]
            tokens = tokens if end is None else tokens[: end - begin]
            self.tiers.hold([*before[1:], naming.block_name(before[-1], tokens)], seconds)

    def _names(self, slot: Slot, length: int) -> list[bytes]:
        """The names of the blocks of a slot within its first `length` tokens, the first name before them."""
        for number in range(len(slot.names) - 1, length // naming.BLOCK):
            begin = number * naming.BLOCK
            slot.names.append(naming.block_name(slot.names[-1], slot.tokens[begin : begin + naming.BLOCK]))
        return slot.names

    def _find(self, sequence: Sequence, slot: Slot) -> FoundPrefix | None:
        """Find the tokens that the tiers hold beyond those of a slot; it cuts no group in two."""
        if self.tiers is None:
            return None
        first = self.tiers.first_name(sequence.cache_salt, sequence.adapter_key)
        if slot.names[:1] != [first]:
            slot.names, slot.num_kept = [first], 0
        if self.policy is None or not sequence.can_take_over:
            return None
        start, most = len(slot.tokens), len(sequence.tokens) - 1
        found = self.tiers.find(first, sequence.tokens, start, not_inside(most, sequence.groups))
        while found is not None and not_inside(found.length, sequence.groups) != found.length:
            most = not_inside(found.length, sequence.groups)
            found = self.tiers.find(first, sequence.tokens, start, most)
        return found

    def _placement(self, sequence: Sequence) -> Placement | None:
        if self.policy is None or not sequence.can_take_over:
            return place(self.slots, [])
        salt, key = sequence.cache_salt, sequence.adapter_key
        return place(self.slots, sequence.tokens, sequence.groups, self.policy, salt, key)

    def keep(self, slot: Slot, length: int, groups: Groups) -> None:
        """Keep the first `length` tokens in slot and cache, or as many as a sequence can continue from."""
        length = self._cache.resumable(slot.index, length)
        while not_inside(length, groups) != length:
            length = self._cache.resumable(slot.index, not_inside(length, groups))
        try:
            self._cache.remove(slot.index, length)
        except NotSupportedError:
            length = 0
            self._cache.remove(slot.index, 0)
        slot.cut(length)
        slot.groups = groups

    def shift(self, sequence: Sequence, dropped: range) -> None:
        """Drop tokens of a full sequence; the rest is moved, or computed again where it cannot be.

        The choice depends on the sequence alone, since moved keys are not the same numbers as computed ones.
        Shared keys are computed again for this sequence alone before they are moved.
        """
        slot, groups = sequence.slot, sequence.groups
        as_computed = dropped.start if slot.shifted_at is None else min(dropped.start, slot.shifted_at)
        if not self._can_move(slot, dropped):
            sequence.drop(dropped)
            self.keep(slot, as_computed, groups)
            slot.groups = sequence.groups
            return
        own = self._cache.first_shared(slot.index, dropped.stop)
        if own < len(slot.tokens):
            self.keep(slot, own, groups)
        else:
            distance = extent(sequence.images, dropped)
            self._cache.remove(slot.index, dropped.start, dropped.stop, distance)
            sequence.drop(dropped)
            del slot.tokens[dropped.start : dropped.stop]
            slot.forget_names(dropped.start)
            slot.groups = sequence.groups
        slot.shifted_at = as_computed  # from now on no other prompt shares the moved keys

    def _can_move(self, slot: Slot, dropped: range) -> bool:
        """Return whether tokens after `dropped` can move down: all are as computed, or all moved before."""
        is_alike = slot.shifted_at is None or slot.shifted_at <= dropped.start
        if not is_alike or dropped.stop >= len(slot.tokens):
            return False
        try:
            self._cache.check_remove(slot.index, dropped.start, dropped.stop)
        except NotSupportedError:
            return False
        return True

    def forget(self, slots: Iterable[Slot]) -> None:
        """Empty slots and their part of the cache, whatever a failed operation has left there."""
        emptied = list(slots)
        self._cache.forget(slot.index for slot in emptied)
        for slot in emptied:
            slot.cut(0)
            slot.groups = ()


def _owner(sequence: Sequence) -> tuple[str, str]:
    return sequence.cache_salt, sequence.adapter_key


def length_to_keep(slot: Slot) -> int:
    """Return how many tokens of a slot any sequence may share: the keys of none of them were moved."""
    return len(slot.tokens) if slot.shifted_at is None else min(slot.shifted_at, len(slot.tokens))
