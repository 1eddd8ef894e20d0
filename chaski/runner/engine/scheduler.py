"""The scheduler chooses the sequences that compute next, and the number of their tokens.

It works on plain numbers: no tensors, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

__all__ = ["Pending", "Scheduler"]


class Pending(Protocol):
    """A sequence as the scheduler sees it."""

    @property
    def num_pending(self) -> int:
        """Number of tokens that can be computed next; may be 0."""

    def share(self, max_tokens: int, max_outputs: int) -> int:
        """Return how many of them it computes in a batch with this much room; may be 0."""

    @property
    def is_speculating(self) -> bool:
        """True if all but one of them are proposed tokens, which may be rejected."""

    def num_outputs(self, count: int) -> int:
        """Return the number of outputs of its next `count` tokens."""


P = TypeVar("P", bound=Pending)


class Scheduler(Generic[P]):
    """Fills batches of up to `max_tokens` tokens and `max_outputs` outputs, over all sequences.

    Sequences that decode, with one token each, come first: a long prompt never makes the others wait for more
    than its share of a batch. The rest of the batch goes to prompts: first those that got nothing last time,
    then short ones before long ones. So no request waits for the end of a long prompt, and the long one moves
    on as well. A prompt that is the first in line and still finds no room, because it needs much at once,
    comes before all others next time.

    A batch of prompts alone has up to `prompt_tokens` tokens, where the first in line needs no more at once;
    None for `max_tokens`. Where a batch has only some of the sequences that decode, the others come first in
    the next one.
    """

    def __init__(self, max_tokens: int, max_outputs: int, prompt_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self.max_outputs = max_outputs
        self._prompt_tokens = max_tokens if prompt_tokens is None else prompt_tokens
        self._passed_over: list[P] = []
        self._left_out: list[P] = []
        self._urgent: P | None = None

    def next(self, sequences: Iterable[P], most_decoding: int | None = None) -> list[tuple[P, int]]:
        """Return the next batch: sequences with their numbers of tokens, all above 0; it may be empty.

        Of those that decode it has at most `most_decoding`; None for all.
        """
        decoding: list[P] = []
        prompts: list[P] = []
        for sequence in sequences:
            if sequence.num_pending == 1 or sequence.is_speculating:
                decoding.append(sequence)
            elif sequence.num_pending:
                prompts.append(sequence)
        prompts.sort(key=lambda prompt: (prompt not in self._passed_over, prompt.num_pending))
        decoding.sort(key=lambda each: each not in self._left_out)
        most = len(decoding) if most_decoding is None else most_decoding
        decoding, self._left_out = decoding[:most], decoding[most:]
        urgent = [prompt for prompt in prompts if prompt is self._urgent]
        line = urgent + decoding + [prompt for prompt in prompts if prompt is not self._urgent]
        batch = [] if decoding else self._fill(line, set(), self._prompt_tokens)
        if not batch or batch[0][0] is not line[0]:
            batch = self._fill(line, {id(sequence) for sequence in decoding}, self.max_tokens)
        served = [sequence for sequence, _ in batch]
        self._passed_over = [prompt for prompt in prompts if prompt not in served]
        self._urgent = prompts[0] if prompts and prompts[0] not in served else None
        return batch

    def _fill(self, line: Iterable[P], decoding: set[int], tokens: int) -> list[tuple[P, int]]:
        """Fill a batch of up to `tokens` tokens in the order of the line.

        A sequence with proposed tokens leaves room for one token of every other one that decodes.
        """
        batch = []
        outputs = self.max_outputs
        num_behind = len(decoding)
        for sequence in line:
            if id(sequence) in decoding:
                num_behind -= 1
            if sequence.is_speculating:
                count = sequence.share(_without(tokens, num_behind), _without(outputs, num_behind))
            else:
                count = sequence.share(tokens, outputs)
            if count:
                batch.append((sequence, count))
                tokens -= count
                outputs -= sequence.num_outputs(count)
        return batch


def _without(room: int, reserved: int) -> int:
    """Return the room without the reserved part, but at least 1 if there was any room."""
    return max(room - reserved, min(room, 1))
