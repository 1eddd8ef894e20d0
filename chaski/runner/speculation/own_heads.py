"""A model proposes its own next tokens, by blocks for multi-token prediction (see `chaski.model.nextn`).

The block reads the hidden state that the last token was chosen from, proposes a token, and then continues
from its own hidden state. Its stores are taken back: the model stores the same tokens again with the next
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items

from msgspec import Struct

from chaski.model.block_program import BlockProgram
from chaski.model.chain_program import ChainProgram
from chaski.model.output_rows import OutputRow
from chaski.model.proposing import ProposalRequest, ProposingCost, ProposingProgram, num_common_tokens
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.speculator import PayingLength

__all__ = ["OwnHeads", "OwnSpeculator"]

# Tokens at the end of a text that are looked at, and how large a share may be rare where none is proposed.
_LAST, _MOST_RARE = 64, 1 / 16


class Proposer(Struct, frozen=True):
    """A program, and the cost of proposing with it: see `PayingLength`."""

    program: ProposingProgram | ChainProgram | BlockProgram
    cost: ProposingCost


class _Asked(ProposalRequest, eq=False, kw_only=True):
    """A request, and the proposer that fills it."""

    proposer: Proposer


class OwnHeads:
    """The proposing part of an engine's model. Where `common` is given, it proposes common tokens only.

    Only these are proposed where a text has hardly any others.
    """

    def __init__(self, whole: Proposer, common: Proposer | None = None) -> None:
        self._whole = whole
        self._common = common
        self._jobs: list[_Asked] = []

    @classmethod
    def of(
        cls,
        program: Callable[[int | None], ProposingProgram | ChainProgram | BlockProgram],
        cost: Callable[[float], ProposingCost],
        vocab_size: int | None,
    ) -> OwnHeads:
        """Reserve what proposing takes.

        `program` compiles it, for that many of the first tokens or all; `cost` is that of a share of the
        output layer. `vocab_size` is None where it proposes tokens in its own order.
        """
        whole = Proposer(program(None), cost(1.0))
        common = None if vocab_size is None else num_common_tokens(vocab_size)
        if vocab_size is None or common is None:
            return cls(whole)
        return cls(whole, Proposer(program(common), cost(common / vocab_size)))

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
        self, slot: int, tokens: Items[int], row: OutputRow, place: int, most: int, proposer: Proposer
    ) -> list[int]:
        """Return a list that `compute` fills with up to `most` proposed tokens."""
        position = len(tokens) - 1
        job = _Asked(slot, position, tokens[-1], row, most, position - place, proposer=proposer)
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
        (self._whole if needs_all else jobs[0].proposer).program.propose(jobs)

    def forget(self) -> None:
        """Begin again, whatever a failure has left. The engine empties the cache."""
        self._jobs = []


class OwnSpeculator:
    """A `Speculator` that proposes repetitions of the text, and otherwise asks the model's heads."""

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
        """Record how many tokens of the last proposal were accepted, for its source."""
        if self._is_repeated:
            self._repeating.record_acceptance(num_proposed, num_accepted)
        else:
            self._length.record_acceptance(num_proposed, num_accepted, len(self._tokens))

    def request(self, max_tokens: int, slot: int, row: OutputRow, place: int) -> None:
        """Ask for the next proposal, of at most `max_tokens`, after a token that was chosen from `row`."""
        self._repeating.request(max_tokens, slot)
        self._proposed = self._repeating.propose()
        self._is_repeated = bool(self._proposed)
        proposer = self._heads.proposer(self._tokens)
        self._length.cost = proposer.cost
        length = min(max_tokens, self._length.current(len(self._tokens)))
        if not self._is_repeated and length > 0:
            self._proposed = self._heads.request(slot, self._tokens, row, place, length, proposer)

    def propose(self) -> list[int]:
        """Return the tokens that were found."""
        proposed, self._proposed = self._proposed, []
        return proposed
