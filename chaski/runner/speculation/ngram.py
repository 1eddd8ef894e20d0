"""The n-gram speculator proposes repetitions of the text (Saxena 2023, "Prompt Lookup Decoding").

Answers often repeat parts of the prompt: code that is edited, a text that is summarized, names. When the last
tokens occurred earlier in the sequence, it proposes the tokens that followed them there.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from chaski.model.output_rows import OutputRow
from chaski.runner.speculation.speculator import ProposalLength

__all__ = ["NgramSpeculator"]

# The length of an n-gram: shorter ones are found too often to mean anything.
_NGRAM = 3


class NgramSpeculator:
    """A `Speculator` that knows the tokens of one sequence, and where each n-gram of it occurred last."""

    def __init__(self, tokens: Iterable[int], max_proposed: int) -> None:
        self._tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}  # position of the token after an n-gram
        self._length = ProposalLength(max_proposed)
        self._requested = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""
        held = self._tokens
        for token in tokens:
            # The n-gram that the sequence ends with is not entered before something follows it.
            if len(held) >= _NGRAM:
                self._behind[tuple(held[-_NGRAM:])] = len(held)
            held.append(token)

    def record_acceptance(self, num_proposed: int, num_accepted: int) -> None:
        """Record how many tokens of the last proposal were accepted."""
        self._length.record_acceptance(num_proposed, num_accepted, len(self._tokens))

    def request(self, max_tokens: int, slot: int, row: OutputRow | None = None, place: int = 0) -> None:
        """Ask for the next proposal, of at most `max_tokens`."""
        self._requested = max_tokens

    def propose(self) -> list[int]:
        """Return at most the requested number of tokens; none if the last n-gram is new."""
        held = self._tokens
        length = min(self._requested, self._length.current(len(held)))
        behind = self._behind.get(tuple(held[-_NGRAM:])) if length > 0 else None
        if behind is None:
            return []
        # Entries below 0 are rows of images, and cannot be proposed.
        return list(takewhile(lambda token: token >= 0, held[behind : behind + length]))
