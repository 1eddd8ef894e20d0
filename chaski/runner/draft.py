"""A small model that guesses the next tokens of a large one (Leviathan et al. 2023, "Speculative Decoding").

It has the same tokens, and a cache of its own with as many places. Before it guesses, a place is brought to
what the sequence is now: tokens that were guessed wrong, or forgotten by a shift, are dropped, and those that
are missing are computed. It computes for all sequences together, and always takes its most likely token.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from chaski.errors import NotSupportedError
from chaski.kvcache import Cache
from chaski.kvcache.batch import Batch
from chaski.model.program import Program
from chaski.runner.guesser import Length
from chaski.runner.slots import common_prefix

__all__ = ["Draft", "Drafted"]


@dataclass(slots=True, eq=False)
class _Job:
    """`most` guesses behind the `tokens` that the place `slot` is to hold; `pending` are still to compute."""

    slot: int
    cache_salt: str
    tokens: Items[int]
    most: int
    pending: list[int] = field(default_factory=list)
    found: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return len(self.found) < self.most


class Draft:
    """The small model of an engine with `parallel` slots, whose indices are those of its own cache.

    `vocab_size`: the tokens that both models have; others are neither guessed nor followed.
    """

    def __init__(self, program: Program, cache: Cache, parallel: int, vocab_size: int) -> None:
        self._program = program
        self._cache = cache
        self._vocab_size = vocab_size
        self._held: list[list[int]] = [[] for _ in range(parallel)]
        self._cache_salts = [""] * parallel
        self._jobs: list[_Job] = []

    def follow(self, tokens: Items[int], cache_salt: str, max_guesses: int) -> Drafted:
        """A guesser for a sequence with that cache salt; `tokens` are those that are certain, at any time."""
        return Drafted(self, tokens, cache_salt, max_guesses)

    def wish(self, slot: int, cache_salt: str, tokens: Items[int], most: int) -> list[int]:
        """A list that `compute` fills with up to `most` guesses."""
        job = _Job(slot, cache_salt, tokens, most)
        self._jobs.append(job)
        return job.found

    def compute(self) -> None:
        """Guess for all who wished for it, together."""
        jobs, self._jobs = self._jobs, []
        try:
            for job in jobs:
                self._bring_up(job)
            while jobs := [job for job in jobs if job.is_open and self._knows(job.pending)]:
                self._step(jobs)
        except BaseException:
            self.forget()
            raise

    def _bring_up(self, job: _Job) -> None:
        """Hold nothing but what the tokens begin with. The last one is always computed, to guess from it."""
        held = self._held[job.slot]
        tokens = list(job.tokens)
        same = common_prefix(held, tokens) if self._cache_salts[job.slot] == job.cache_salt else 0
        self._cache_salts[job.slot] = job.cache_salt
        length = self._cache.resumable(job.slot, min(same, len(tokens) - 1))
        try:
            self._cache.remove(job.slot, length)
        except NotSupportedError:
            length = 0
            self._cache.remove(job.slot, 0)
        del held[length:]
        job.pending = tokens[length:]

    def _knows(self, tokens: Items[int]) -> bool:
        return min(tokens) >= 0 and max(tokens) < self._vocab_size

    def _step(self, jobs: Items[_Job]) -> None:
        """Compute a batch of what is pending; whoever has nothing left then has one guess more."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[int] = []
        guessing = []
        for job in jobs:
            begin = len(self._held[job.slot])
            count = min(len(job.pending), self._program.max_tokens - len(tokens))
            if count == len(job.pending) and len(outputs) == self._program.max_outputs:
                count -= 1
            computed, job.pending = job.pending[:count], job.pending[count:]
            tokens += computed
            positions += range(begin, begin + count)
            slots += [job.slot] * count
            if not job.pending:
                outputs.append(len(tokens) - 1)
                guessing.append(job)
            self._held[job.slot] += computed
        batch = Batch(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            np.array(slots, np.int32),
            np.array(outputs, np.int32),
        )
        self._program.launch(self._program.prepare(batch), [1] * len(outputs))
        self._program.wait()
        for job, guess in zip(guessing, self._program.likely()[:, 1, 0].tolist(), strict=True):
            if guess < self._vocab_size:
                job.found.append(int(guess))
            job.pending = [int(guess)]

    def forget(self) -> None:
        """Begin again with empty places, whatever a failure has left."""
        with suppress(Exception):  # it is what failed
            self._program.wait()
        self._jobs = []
        self._cache.forget(range(len(self._held)))
        for held in self._held:
            held.clear()


class Drafted:
    """A `Guesser` for one sequence: its wishes to a draft model."""

    def __init__(self, draft: Draft, tokens: Items[int], cache_salt: str, max_guesses: int) -> None:
        self._draft = draft
        self._tokens = tokens
        self._cache_salt = cache_salt
        self._length = Length(max_guesses)
        self._num_accepted = len(tokens)
        self._guesses: list[int] = []

    def accept(self, tokens: Iterable[int]) -> None:
        """Count tokens that are certain. What they are, the sequence knows."""
        self._num_accepted += len(list(tokens))

    def learn(self, num_guessed: int, num_right: int) -> None:
        """How many of the last guesses came true."""
        self._length.learn(num_guessed, num_right, self._num_accepted)

    def wish(self, most: int, slot: int) -> None:
        """Up to `most` guesses are of use next."""
        length = min(most, self._length.now(self._num_accepted))
        self._guesses = self._draft.wish(slot, self._cache_salt, self._tokens, length) if length > 0 else []

    def guess(self) -> list[int]:
        """What the draft model found."""
        guesses, self._guesses = self._guesses, []
        return guesses
