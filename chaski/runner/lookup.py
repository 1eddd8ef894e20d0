"""Guessing the next tokens from the text itself (prompt lookup; Saxena 2023, "Prompt Lookup Decoding").

Answers often repeat what stands in the prompt: code that is edited, a text that is summarized, names. When
the last tokens stood there before, what followed them then is guessed to follow now.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from chaski.runner.guesser import Length

__all__ = ["Lookup"]

# So many tokens must have stood there before: fewer are found too often to mean anything.
_KEY = 3


class Lookup:
    """A `Guesser` from the tokens of one sequence, and where each run of three of them stood last."""

    def __init__(self, tokens: Iterable[int], max_guesses: int) -> None:
        self._tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}  # where the token behind a run stands
        self._length = Length(max_guesses)
        self._wished = 0
        self.accept(tokens)

    def accept(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""
        held = self._tokens
        for token in tokens:
            # The run that the sequence ends with is not entered before something follows it.
            if len(held) >= _KEY:
                self._behind[tuple(held[-_KEY:])] = len(held)
            held.append(token)

    def learn(self, num_guessed: int, num_right: int) -> None:
        """How many of the last guesses came true."""
        self._length.learn(num_guessed, num_right, len(self._tokens))

    def wish(self, most: int, slot: int) -> None:
        """Up to `most` guesses are of use next."""
        self._wished = most

    def guess(self) -> list[int]:
        """As many tokens as were wished for at most; none where there is nothing to go by."""
        held = self._tokens
        length = min(self._wished, self._length.now(len(held)))
        behind = self._behind.get(tuple(held[-_KEY:])) if length > 0 else None
        if behind is None:
            return []
        # What is below 0 stands for an image, and is no token that could come.
        return list(takewhile(lambda token: token >= 0, held[behind : behind + length]))
