"""Current figures of an engine's sequences, for monitoring. They contain no text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from chaski.chat.sendable import Sendable

__all__ = ["LiveSequence", "LiveSequences", "TokenTotals"]


class LiveSequence(Struct, frozen=True, kw_only=True):
    """A sequence that has not ended. Counts are in tokens.

    number     its number among all sequences of the process
    slot       its slot in the cache; None while it waits for one
    state      waiting, following (another one that computes the same prompt), restoring, prefill or decode
    computed_tokens   those of the prompt that were computed, and not taken from the cache
    dropped_tokens    those of the prompt that were cut off, and those that left a full context
    proposed_tokens   tokens that speculation proposed; `accepted_tokens` of them were right
    seconds    the time since it came
    replica    the replica that computes it; empty for a model without replicas
    """

    number: int
    slot: int | None
    state: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    dropped_tokens: int
    proposed_tokens: int
    accepted_tokens: int
    seconds: float
    replica: str = ""


class TokenTotals(NamedTuple):
    """Tokens of all sequences that have had a slot, added up from the start of an engine.

    computed   those of prompts that were computed, and not taken from the cache
    cells, memory, disk   those of prompts that were cached there
    dropped    those of prompts that were cut off, and those that left a full context
    proposed   tokens that speculation proposed; `accepted` of them were right
    """

    computed: int = 0
    generated: int = 0
    cells: int = 0
    memory: int = 0
    disk: int = 0
    dropped: int = 0
    proposed: int = 0
    accepted: int = 0

    @classmethod
    def together(cls, parts: Iterable[TokenTotals]) -> TokenTotals:
        """Add up totals."""
        return cls(*map(sum, zip(cls(), *parts, strict=True)))


class LiveSequences(Sendable, frozen=True, kw_only=True):
    """The sequences of an engine: `num_sequences` in total; `sequences` lists the first ones.

    `seconds` are those of a clock that only goes forward.
    """

    seconds: float
    totals: TokenTotals
    num_sequences: int
    sequences: tuple[LiveSequence, ...]

    def of_replica(self, name: str) -> LiveSequences:
        """Return the same figures with the name of the replica that they come from."""
        named = tuple(replace(each, replica=name) for each in self.sequences)
        return replace(self, sequences=named)
