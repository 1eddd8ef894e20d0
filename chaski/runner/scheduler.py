"""Which sequences compute next, and how many of their tokens: plain numbers, no tensors, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

__all__ = ["Pending", "schedule"]


class Pending(Protocol):
    """What has tokens to compute."""

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not computed yet; at least 1."""


P = TypeVar("P", bound=Pending)


def schedule(sequences: Iterable[P], max_tokens: int) -> list[tuple[P, int]]:
    """The next batch: (sequence, tokens of it), at most `max_tokens` in all.

    Sequences with one token left, which are those that decode, come first: a long prompt never makes the
    others wait for more than its share of a batch. What remains goes to prompts in the order given, so that
    the first one to come is the first one to be answered. Nobody starves while `max_tokens` is at least the
    number of sequences.
    """
    decoding: list[P] = []
    prompts: list[P] = []
    for sequence in sequences:
        (decoding if sequence.num_pending == 1 else prompts).append(sequence)
    batch = [(sequence, 1) for sequence in decoding[:max_tokens]]
    room = max_tokens - len(batch)
    for sequence in prompts:
        count = min(sequence.num_pending, room)
        if count == 0:
            break
        batch.append((sequence, count))
        room -= count
    return batch
