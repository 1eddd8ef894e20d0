"""A model proposes its own next tokens, by a block for multi-token prediction (see `chaski.model.nextn`).

The block reads the hidden state that the last token was chosen from, proposes a token, and then goes on from
its own hidden state. What it stores meanwhile is taken back: with the next batch the model stores it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from chaski.kvcache import Cache
from chaski.kvcache.batch import Batch
from chaski.ml.backend import Backend
from chaski.model.output_rows import OutputRow
from chaski.model.proposing import Proposing, ProposingProgram, num_common_tokens
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.speculator import PayingLength

__all__ = ["OwnHeads", "OwnSpeculator"]

# Tokens at the end of a text that are looked at, and how large a share may be rare where none is proposed.
_LAST, _MOST_RARE = 64, 1 / 16


@dataclass(frozen=True, slots=True)
class Proposer:
    """A program, and what a token that it proposes costs: see `PayingLength`."""

    program: ProposingProgram
    cost: float


@dataclass(slots=True, eq=False)
class _Job:
    """A request for `most` tokens behind `token`, the last of a sequence, which was chosen from `row`."""

    slot: int
    position: int
    token: int
    row: OutputRow
    most: int
    proposer: Proposer
    proposed: list[int] = field(default_factory=list)


class OwnHeads:
    """The proposing part of an engine's model. Where `common` is given, it proposes common tokens only.

    They are what is proposed where a text has hardly any others.
    """

    def __init__(self, whole: Proposer, common: Proposer | None = None) -> None:
        self._whole = whole
        self._common = common
        self._jobs: list[_Job] = []

    @classmethod
    def of(
        cls,
        proposing: Proposing,
        cost: Callable[[float], float],
        cache: Cache,
        backend: Backend,
        parallel: int,
    ) -> OwnHeads:
        """Reserve what proposing takes for `parallel` sequences in the slots of the model's cache.

        `cost` of a share of the output layer is that of a token, see `PayingLength`.
        """
        vocab_size = proposing.config.vocab_size

        def proposer(most: int | None) -> Proposer:
            program = ProposingProgram(proposing, cache, backend, parallel, most)
            return Proposer(program, cost((most or vocab_size) / vocab_size))

        most = None if proposing.token_ids is not None else num_common_tokens(vocab_size)
        return cls(proposer(None), None if most is None else proposer(most))

    def proposer(self, tokens: Items[int]) -> Proposer:
        """The one for a sequence of these tokens."""
        common, last = self._common, tokens[-_LAST:]
        if common is None:
            return self._whole
        rare = sum(token >= common.program.most_tokens for token in last)
        return common if rare <= _MOST_RARE * len(last) else self._whole

    def speculator(self, tokens: Items[int], cache_salt: str, max_proposed: int) -> OwnSpeculator:
        """Make a speculator for a sequence; `tokens` holds its certain ones, which grow."""
        return OwnSpeculator(self, tokens, max_proposed)

    def request(
        self, slot: int, tokens: Items[int], row: OutputRow, most: int, proposer: Proposer
    ) -> list[int]:
        """Return a list that `compute` fills with up to `most` proposed tokens."""
        job = _Job(slot, len(tokens) - 1, tokens[-1], row, most, proposer)
        self._jobs.append(job)
        return job.proposed

    @property
    def is_requested(self) -> bool:
        """True if `compute` has something to do."""
        return bool(self._jobs)

    def compute(self) -> None:
        """Compute all proposals that were requested, together."""
        jobs, self._jobs = self._jobs, []
        cache = self._whole.program.cache
        jobs = [job for job in jobs if cache.length(job.slot) == job.position]
        if not jobs:
            return
        needs_all = any(job.proposer is self._whole for job in jobs)
        program = (self._whole if needs_all else jobs[0].proposer).program
        hidden = np.stack([job.row.hidden() for job in jobs])
        first = batch = _batch(jobs)
        while jobs:
            found, states = program.step(batch, hidden)
            for job, token in zip(jobs, found, strict=True):
                job.proposed.append(token)
            going_on = [index for index, job in enumerate(jobs) if len(job.proposed) < job.most]
            jobs = [jobs[index] for index in going_on]
            hidden, batch = states[going_on], _batch(jobs)
        cache.undo_forward(first)

    def forget(self) -> None:
        """Begin again, whatever a failure has left. The engine empties the cache."""
        self._jobs = []


def _batch(jobs: Items[_Job]) -> Batch:
    """The last token of each job."""
    return Batch(
        np.array([job.proposed[-1] if job.proposed else job.token for job in jobs], np.int32),
        np.array([job.position + len(job.proposed) for job in jobs], np.int32),
        np.array([job.slot for job in jobs], np.int32),
        np.zeros(0, np.int32),
    )


class OwnSpeculator:
    """A `Speculator` that proposes what the text repeats, and asks the model's heads where it does not."""

    def __init__(self, heads: OwnHeads, tokens: Items[int], max_proposed: int) -> None:
        self._heads = heads
        self._tokens = tokens
        self._repeating = NgramSpeculator(tokens, max_proposed)
        self._length = PayingLength(max_proposed, heads.proposer(tokens).cost)
        self._is_repeated = False
        self._proposed: list[int] = []

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""
        self._repeating.extend(tokens)

    def record_acceptance(self, num_proposed: int, num_accepted: int) -> None:
        """Take in how many tokens of the last proposal were accepted, for whoever made it."""
        if self._is_repeated:
            self._repeating.record_acceptance(num_proposed, num_accepted)
        else:
            self._length.record_acceptance(num_proposed, num_accepted, len(self._tokens))

    def request(self, max_tokens: int, slot: int, row: OutputRow) -> None:
        """Ask for the next proposal, of at most `max_tokens`, behind a token that was chosen from `row`."""
        self._repeating.request(max_tokens, slot)
        self._proposed = self._repeating.propose()
        self._is_repeated = bool(self._proposed)
        proposer = self._heads.proposer(self._tokens)
        self._length.cost = proposer.cost
        length = min(max_tokens, self._length.current(len(self._tokens)))
        if not self._is_repeated and length > 0:
            self._proposed = self._heads.request(slot, self._tokens, row, length, proposer)

    def propose(self) -> list[int]:
        """Return the tokens that were found."""
        proposed, self._proposed = self._proposed, []
        return proposed
