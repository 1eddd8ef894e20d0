"""The slots of an engine: each running sequence has one, which knows the tokens that the cache holds there.

Slots make the prefix cache: a request takes over the part of its prompt that some slot already holds, and
computes only the rest. Results do not depend on it, since keys and values are the same however they came
about.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct, field

from chaski.chat.groups import Groups, not_inside
from chaski.runner.prefix import naming

__all__ = ["Placement", "Policy", "Slot", "common_prefix", "place", "shared_prefix"]


class Slot(Struct, eq=False):
    """`index` is the sequence id in the cache; `tokens` are those that the cache holds there.

    `groups` are those of the sequence that runs in it, or ran last. `last_used` grows with every use; 0 means
    never. From position `shifted_at` on the keys were moved: computing the same tokens would give other keys,
    so no other prompt may reuse them. Only prompts with the same `cache_salt` and `adapter_key` may reuse
    any: adapters change the keys and values of the same tokens.

    `names` are the first name of its sequence and the names of its whole blocks, as far as they were needed;
    `num_kept` of these are in the tiers, or were not worth keeping.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    groups: Groups = ()
    is_free: bool = True
    last_used: int = 0
    shifted_at: int | None = None
    cache_salt: str = ""
    adapter_key: str = ""
    names: list[bytes] = field(default_factory=list)
    num_kept: int = 0

    def cut(self, length: int) -> None:
        """Hold the first `length` tokens and no more."""
        del self.tokens[length:]
        self.forget_names(length)
        if self.shifted_at is not None and length <= self.shifted_at:
            self.shifted_at = None

    def forget_names(self, length: int) -> None:
        """Forget the names of blocks after the first `length` tokens."""
        del self.names[length // naming.BLOCK + 1 :]
        self.num_kept = min(self.num_kept, length // naming.BLOCK)

    def continue_from(self, source: Slot, length: int) -> None:
        """Hold the first `length` tokens of another slot."""
        self.tokens, self.shifted_at = source.tokens[:length], None
        self.names, self.num_kept = list(source.names), source.num_kept
        self.forget_names(length)


class Policy(Enum):
    """The rule for continuing in a free slot that shares a prefix, where its other tokens are lost.

    SINGLE_USER  always: one conversation, in which a changed message replaces what came after it
    MULTI_USER   only if nothing is lost; else the prefix is shared with another slot
    SMALLER_LOSS if it loses less than it takes over
    """

    SINGLE_USER = "single"
    MULTI_USER = "multi"
    SMALLER_LOSS = "smaller loss"

    def accepts(self, kept: int, lost: int) -> bool:
        """Return whether a prompt may continue in a slot, keep `kept` of its tokens and drop `lost`."""
        if self is Policy.SMALLER_LOSS:
            return lost < kept
        return kept > 0 and (self is Policy.SINGLE_USER or lost == 0)


class Placement(NamedTuple):
    """Run in `target`, on the first `length` tokens of `source` (which may be the same slot)."""

    source: Slot
    target: Slot
    length: int


def place(
    slots: Sequence[Slot],
    prompt: list[int],
    groups: Groups = (),
    policy: Policy = Policy.SMALLER_LOSS,
    cache_salt: str = "",
    adapter_key: str = "",
) -> Placement | None:
    """Choose the slot of a prompt with `groups`, and the prefix to take over; None when no slot is free.

    The source is the slot with the longest common prefix, running ones included, because a prefix can be
    shared, but never one with another cache salt or adapter key. The target is the source itself if it is
    free and the policy accepts that, else the free slot that was not used for the longest time.
    """
    free = [slot for slot in slots if slot.is_free]
    if not free:
        return None
    owner = cache_salt, adapter_key
    lengths = [
        _usable(slot, prompt, groups) if (slot.cache_salt, slot.adapter_key) == owner else 0 for slot in slots
    ]
    length = max(lengths)
    source = slots[lengths.index(length)]
    if source.is_free and policy.accepts(kept=length, lost=len(source.tokens) - length):
        return Placement(source, source, length)
    return Placement(source, min(free, key=lambda slot: slot.last_used), length)


def _usable(slot: Slot, prompt: list[int], groups: Groups) -> int:
    """Return how much of a prompt a slot holds: the same tokens and groups, and only whole groups."""
    return shared_prefix(slot.tokens[: slot.shifted_at], slot.groups, prompt, groups)


def shared_prefix(tokens: list[int], their_groups: Groups, prompt: list[int], groups: Groups) -> int:
    """Return how much of a prompt `tokens` begin with: the same tokens and groups, and only whole groups."""
    length = common_prefix(tokens, prompt)
    different = set(their_groups) ^ set(groups)
    length = min((group.start for group in different if group.start < length), default=length)
    return not_inside(length, groups)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Return the length of the longest common prefix."""
    same, different = 0, min(len(a), len(b)) + 1
    while different - same > 1:  # comparing slices is much quicker than comparing numbers one by one
        middle = (same + different) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            different = middle
    return same
