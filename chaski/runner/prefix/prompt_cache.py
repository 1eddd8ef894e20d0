"""The prefix cache: the slots of an engine together with the cells behind them."""

from __future__ import annotations

from collections.abc import Iterable

from chaski.chat.groups import Groups, not_inside
from chaski.chat.image_rows import extent
from chaski.errors import NotSupportedError
from chaski.kvcache import Cache
from chaski.runner.engine.sequence import Sequence
from chaski.runner.prefix.slots import Placement, Policy, Slot, place

__all__ = ["PromptCache"]


class PromptCache:
    """`parallel` slots, each of which knows the tokens that the cache holds for it.

    `policy` says how prompts take over what was computed for others; None turns that off.
    """

    def __init__(self, cache: Cache, parallel: int, policy: Policy | None) -> None:
        self.slots = [Slot(index) for index in range(parallel)]
        self.policy = policy
        self._cache = cache
        self._uses = 0

    def start(self, sequence: Sequence) -> Slot | None:
        """Start a sequence with the prefix that slots hold -> its slot; None while no slot is free."""
        placement = self._placement(sequence)
        if placement is None:
            return None
        source, slot, length = placement
        # The last token of the prompt is always computed: the answer begins with its outputs.
        length = not_inside(min(length, len(sequence.tokens) - 1), sequence.groups)
        if length and source is not slot:
            self._cache.copy_prefix(source.index, slot.index, length)
            slot.tokens, slot.shifted_at = source.tokens[:length], None
        self.keep(slot, length, sequence.groups)
        self._uses += 1
        slot.last_used = self._uses
        slot.cache_salt, slot.adapter_key = sequence.cache_salt, sequence.adapter_key
        sequence.start(slot)
        slot.is_free = False
        return slot

    def _placement(self, sequence: Sequence) -> Placement | None:
        if self.policy is None or not sequence.can_take_over:
            return place(self.slots, [])
        salt, key = sequence.cache_salt, sequence.adapter_key
        return place(self.slots, sequence.tokens, sequence.groups, self.policy, salt, key)

    def keep(self, slot: Slot, length: int, groups: Groups) -> None:
        """Make slot and cache hold the first `length` tokens, or as many as a sequence can continue from."""
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
        Keys that others hold too are computed again for this sequence alone before they are moved.
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
            slot.groups = sequence.groups
        slot.shifted_at = as_computed  # from now on no other prompt shares the moved keys

    def _can_move(self, slot: Slot, dropped: range) -> bool:
        """Return whether tokens behind `dropped` can move down: all are as computed, or all moved before."""
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
            slot.tokens, slot.groups, slot.shifted_at = [], (), None
