"""Which sequences compute next, and how many of their tokens: plain numbers, no tensors, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

__all__ = ["Pending", "Scheduler"]


class Pending(Protocol):
    """What has tokens to compute."""

    @property
    def num_pending(self) -> int:
        """Tokens that can be computed next; may be 0."""

    def share(self, max_tokens: int, max_outputs: int) -> int:
        """How many of them it computes where there is room for so many; may be 0."""

    @property
    def is_speculating(self) -> bool:
        """True if all but one of them are proposed tokens, which may be rejected."""

    def num_outputs(self, count: int) -> int:
        """How many outputs `count` tokens of it have."""


P = TypeVar("P", bound=Pending)


class Scheduler(Generic[P]):
    """Fills batches of up to `max_tokens` tokens and `max_outputs` outputs, over all sequences.

    Sequences with one token left, which are those that decode, come first: a long prompt never makes the
    others wait for more than its share of a batch. What remains goes to prompts, short ones before long ones,
    and before them those that got nothing last time. So nobody waits for the end of a long prompt, and the
    long one moves on as well. A prompt that finds no room although it is the first in line, because it needs
    much at once, comes before everybody next time.
    """

    def __init__(self, max_tokens: int, max_outputs: int) -> None:
        self.max_tokens = max_tokens
        self.max_outputs = max_outputs
        self._passed_over: list[P] = []
        self._urgent: P | None = None

    def next(self, sequences: Iterable[P]) -> list[tuple[P, int]]:
        """The next batch: sequences and how many tokens of them, all above 0; empty if there is nothing."""
        decoding: list[P] = []
        prompts: list[P] = []
        for sequence in sequences:
            if sequence.num_pending == 1 or sequence.is_speculating:
                decoding.append(sequence)
            elif sequence.num_pending:
                prompts.append(sequence)
        prompts.sort(key=lambda prompt: (prompt not in self._passed_over, prompt.num_pending))
        urgent = [prompt for prompt in prompts if prompt is self._urgent]
        line = urgent + decoding + [prompt for prompt in prompts if prompt is not self._urgent]
        batch = self._fill(line, {id(sequence) for sequence in decoding})
        served = [sequence for sequence, _ in batch]
        self._passed_over = [prompt for prompt in prompts if prompt not in served]
        self._urgent = prompts[0] if prompts and prompts[0] not in served else None
        return batch

    def _fill(self, line: Iterable[P], decoding: set[int]) -> list[tuple[P, int]]:
        """As many tokens as there is room for, in the order of the line.

        A sequence with proposed tokens leaves room for one token of everybody else that decodes.
        """
        batch = []
        tokens, outputs = self.max_tokens, self.max_outputs
        num_behind = len(decoding)
        for sequence in line:
            if id(sequence) in decoding:
                num_behind -= 1
            reserved = num_behind if sequence.is_speculating else 0
            count = sequence.share(_without(tokens, reserved), _without(outputs, reserved))
            if count:
                batch.append((sequence, count))
                tokens -= count
                outputs -= sequence.num_outputs(count)
        return batch


def _without(room: int, reserved: int) -> int:
    """What is left of the room, but one if there was any."""
    return max(room - reserved, min(room, 1))
