"""Figures of the sequences of an engine as they are now, for who watches it. No text is among them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LiveSequence", "LiveSequences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSequence:
    """A sequence that has not ended. Counts are in tokens.

    number     its number among all sequences of the process
    slot       its slot in the cache; None while it waits for one
    state      waiting, following (another one that computes the same prompt), restoring, prefill or decode
    computed_tokens   those of the prompt that were computed, and not taken from the cache
    dropped_tokens    those of the prompt that were cut off, and those that left a full context
    proposed_tokens   those that were guessed, of which `accepted_tokens` were right
    seconds    the time since it came
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSequences:
    """The sequences of an engine, `num_sequences` in all, of which `sequences` has the first ones.

    `seconds` are those of a clock that only goes forward. `computed_tokens` of prompts and `generated_tokens`
    are counted from the start of the engine.
    """

    seconds: float
    computed_tokens: int
    generated_tokens: int
    num_sequences: int
    sequences: tuple[LiveSequence, ...]
