"""A small model proposes the next tokens of a large one (Leviathan et al. 2023, "Speculative Decoding").

It has the same vocabulary, and its own cache with as many slots. Before it proposes, a slot is brought
to what the sequence is now: tokens that were rejected, or forgotten by a shift, are dropped, and those that
are missing are computed. It computes for all sequences together, and always takes its top token.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from contextlib import suppress

import numpy as np
from msgspec import Struct, field

from chaski.errors import NotSupportedError
from chaski.kvcache import Cache
from chaski.kvcache.batch import Batch
from chaski.model.output_rows import OutputRow
from chaski.model.program import Program
from chaski.model.proposing import ProposingCost
from chaski.runner.prefix.slots import common_prefix
from chaski.runner.speculation.speculator import PayingLength

__all__ = ["DraftModel", "DraftModelSpeculator"]


class _Job(Struct, eq=False):
    """A request for `most` tokens after `tokens`, which `slot` is to hold; `pending` are to be computed."""

    slot: int
    cache_salt: str
    tokens: Items[int]
    most: int
    pending: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return len(self.proposed) < self.most


class DraftModel:
    """The small model of an engine with `parallel` slots, whose indices are those of its own cache.

    `vocab_size`: the tokens that both models have; others are neither proposed nor computed. `cost`: see
    `PayingLength`.
    """

    def __init__(
        self, program: Program, cache: Cache, parallel: int, vocab_size: int, cost: ProposingCost
    ) -> None:
        self.cost = cost
        self._program = program
        self._cache = cache
        self._vocab_size = vocab_size
        self._held: list[list[int]] = [[] for _ in range(parallel)]
        self._cache_salts = [""] * parallel
        self._jobs: list[_Job] = []

    def speculator(self, tokens: Items[int], cache_salt: str, max_proposed: int) -> DraftModelSpeculator:
        """Make a speculator for a sequence with that cache salt; `tokens` holds its certain ones."""
        return DraftModelSpeculator(self, tokens, cache_salt, max_proposed)

    def request(self, slot: int, cache_salt: str, tokens: Items[int], most: int) -> list[int]:
        """Return a list that `compute` fills with up to `most` proposed tokens."""
        job = _Job(slot, cache_salt, tokens, most)
        self._jobs.append(job)
        return job.proposed

    @property
    def is_requested(self) -> bool:
        """True if `compute` has something to do."""
        return bool(self._jobs)

    def compute(self) -> None:
        """Compute all proposals that were requested, together."""
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
        """Drop content beyond the tokens of the job. The last one is always computed, to propose from it."""
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
        """Compute a batch of pending tokens; jobs that have none left then get one proposed token more."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[int] = []
        finished = []
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
                finished.append(job)
            self._held[job.slot] += computed
        batch = Batch(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            np.array(slots, np.int32),
            np.array(outputs, np.int32),
        )
        run = self._program.launch(self._program.prepare(batch), [1] * len(outputs))
        self._program.wait()
        for job, token in zip(finished, run.top_logits()[:, 1, 0].tolist(), strict=True):
            if token < self._vocab_size:
                job.proposed.append(int(token))
            job.pending = [int(token)]

    def forget(self) -> None:
        """Begin again with empty slots, whatever a failure has left."""
        with suppress(Exception):  # the wait itself may have failed
            self._program.wait()
        self._jobs = []
        self._cache.forget(range(len(self._held)))
        for held in self._held:
            held.clear()


class DraftModelSpeculator:
    """A `Speculator` that requests the proposals for one sequence from a draft model."""

    def __init__(self, draft: DraftModel, tokens: Items[int], cache_salt: str, max_proposed: int) -> None:
        self._draft = draft
        self._tokens = tokens
        self._cache_salt = cache_salt
        self._length = PayingLength(max_proposed, draft.cost)
        self._num_tokens = len(tokens)
        self._proposed: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Count tokens that are certain; the sequence itself knows them."""
        self._num_tokens += len(list(tokens))

    def record_acceptance(self, num_proposed: int, num_accepted: int) -> None:
        """Record how many tokens of the last proposal were accepted."""
        self._length.record_acceptance(num_proposed, num_accepted, self._num_tokens)

    def request(self, max_tokens: int, slot: int, row: OutputRow, place: int) -> None:
        """Ask for the next proposal, of at most `max_tokens`."""
        length = min(max_tokens, self._length.current(self._num_tokens))
        self._proposed = []
        if length > 0:
            self._proposed = self._draft.request(slot, self._cache_salt, self._tokens, length)

    def propose(self) -> list[int]:
        """Return the tokens that the draft model has found."""
        proposed, self._proposed = self._proposed, []
        return proposed
