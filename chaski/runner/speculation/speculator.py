"""Proposing the next tokens of a sequence, so that they can be computed in one batch with the last one.

The sampler decides about each token as it would have without a proposal. So a proposal changes how soon a
token is ready, never which token it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from chaski.model.output_rows import OutputRow
from chaski.model.proposing import TOKEN_BESIDE, ProposingCost

__all__ = ["Draft", "PayingLength", "ProposalLength", "Speculator"]

_FIRST_LENGTH, _FIRST_PAUSE = 3, 16

# The assumed share of right tokens before any was tried, and the weight of earlier ones after each proposal.
_PRIOR = 1.0, 2.0
_MEMORY = 0.85


class Speculator(Protocol):
    """Proposes tokens for one sequence.

    A round is `extend`, `record_acceptance` for the proposal before, `request`, and then, when all sequences
    have had their tokens, `propose`.
    """

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""

    def record_acceptance(self, num_proposed: int, num_accepted: int) -> None:
        """Record how many tokens of the last proposal were accepted."""

    def request(self, max_tokens: int, slot: int, row: OutputRow, place: int) -> None:
        """Ask for the next proposal, of at most `max_tokens`; the sequence runs in the slot of that index.

        Its last token was chosen from `row`, which is there until `propose`, and is turned by `place`: see
        `chaski.chat.image_rows.place`.
        """

    def propose(self) -> list[int]:
        """Return at most the requested number of likely next tokens."""


class Draft(Protocol):
    """A model that proposes tokens for several sequences together."""

    def speculator(self, tokens: Sequence[int], cache_salt: str, max_proposed: int) -> Speculator:
        """Make a speculator for a sequence with that cache salt; `tokens` holds its certain ones."""

    @property
    def is_requested(self) -> bool:
        """True if `compute` has something to do."""

    def compute(self) -> None:
        """Compute all proposals that were requested. No batch of the engine is prepared meanwhile."""

    def forget(self) -> None:
        """Begin again with empty slots, whatever a failure has left."""


class Pauses:
    """Times without proposals: each is longer than the one before, until a proposal pays again."""

    def __init__(self) -> None:
        self._next = _FIRST_PAUSE
        self._ends_at = 0

    def begin(self, num_tokens: int) -> None:
        """Begin one, in a sequence of that many tokens."""
        self._ends_at = num_tokens + self._next
        self._next *= 2

    def reset(self) -> None:
        """Make the next one short."""
        self._next = _FIRST_PAUSE

    def includes(self, num_tokens: int) -> bool:
        """Return whether nothing is proposed in a sequence of that many tokens."""
        return num_tokens < self._ends_at


class ProposalLength:
    """The number of tokens to propose, which depends on how many of the proposals before were accepted.

    It doubles where all were accepted, and is halved where none was. When nothing is left of it, nothing is
    proposed for a while. It is for proposals that cost nothing to make.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = _FIRST_LENGTH
        self._pauses = Pauses()

    def current(self, num_tokens: int) -> int:
        """Return the length for a sequence of `num_tokens` tokens; 0 during a pause."""
        return 0 if self._pauses.includes(num_tokens) else min(self._length, self._most)

    def record_acceptance(self, num_proposed: int, num_accepted: int, num_tokens: int) -> None:
        """Record how many proposed tokens were accepted, and how many tokens the sequence has after that."""
        if num_accepted == num_proposed:
            self._length = min(2 * self._length, self._most)
            self._pauses.reset()
        elif num_accepted == 0:
            self._length //= 2
        else:
            self._length = num_accepted + 1
        if self._length == 0:
            self._length = 1
            self._pauses.begin(num_tokens)


class PayingLength:
    """The number of tokens that a model proposes: as many as pay for themselves.

    `cost` is the time of proposing, relative to a batch that makes a token without a proposal. The gain
    depends on the recent share of right tokens, each after right ones: with it, a batch makes 1 + right +
    right² + … tokens. Where no length makes tokens sooner than plain batches, nothing is proposed for a
    while, and then one token.
    """

    def __init__(self, most: int, cost: ProposingCost) -> None:
        self._most = most
        self.cost = cost
        self._right, self._tried = _PRIOR
        self._pauses = Pauses()

    def current(self, num_tokens: int) -> int:
        """Return the length for a sequence of `num_tokens` tokens; 0 during a pause."""
        if self._pauses.includes(num_tokens):
            return 0
        return min(max(self._best(), 1), self._most)

    def record_acceptance(self, num_proposed: int, num_accepted: int, num_tokens: int) -> None:
        """Record how many proposed tokens were accepted, and how many tokens the sequence has after that."""
        self._right = _MEMORY * self._right + num_accepted
        self._tried = _MEMORY * self._tried + min(num_accepted + 1, num_proposed)
        if self._best() == 0:
            self._pauses.begin(num_tokens)
        else:
            self._pauses.reset()

    def _best(self) -> int:
        """The length that makes tokens soonest; 0 where none does."""
        right = self._right / self._tried
        best, tokens, most_sooner = 0, 1.0, 1.0
        for length in range(1, self._most + 1):
            tokens += right**length
            sooner = tokens / (1 + self.cost.proposal + length * (self.cost.token + TOKEN_BESIDE))
            if sooner > most_sooner:
                best, most_sooner = length, sooner
        return best
