"""Guessing the next tokens from the text itself (prompt lookup; Saxena 2023, "Prompt Lookup Decoding").

Answers often repeat what stands in the prompt: code that is edited, a text that is summarized, names. When
the last tokens stood there before, what followed them then is guessed to follow now. The guesses are computed
in the same batch as the last token, and the sampler decides about each as it would have without them. So a
guess changes how soon a token is there, never which one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

__all__ = ["Lookup"]

# So many tokens must have stood there before: fewer are found too often to mean anything.
_KEY = 3
_FIRST_LENGTH, _FIRST_PAUSE = 3, 16


class Lookup:
    """The tokens of one sequence, and where each run of three of them stood last.

    How many tokens are guessed depends on how the guesses before fared: all right, twice as many; all wrong,
    half as many; and when none is left, nothing is guessed for a while, each time for longer.
    """

    def __init__(self, tokens: Iterable[int], max_guesses: int) -> None:
        self._max_guesses = max_guesses
        self._tokens: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}  # where the token behind a run stands
        self._length = _FIRST_LENGTH
        self._pause = _FIRST_PAUSE
        self._resumes_at = 0
        self.accept(tokens)

    def accept(self, tokens: Iterable[int]) -> None:
        """Append tokens that are certain."""
        held = self._tokens
        for token in tokens:
            # The run that the sequence ends with is not entered before something follows it.
            if len(held) >= _KEY:
                self._behind[tuple(held[-_KEY:])] = len(held)
            held.append(token)

    def guess(self, most: int) -> list[int]:
        """Up to `most` tokens that may come next; none where there is nothing to go by."""
        held = self._tokens
        length = min(most, self._length, self._max_guesses)
        if length < 1 or len(held) < self._resumes_at:
            return []
        behind = self._behind.get(tuple(held[-_KEY:]))
        if behind is None:
            return []
        # What is below 0 stands for an image, and is no token that could come.
        return list(takewhile(lambda token: token >= 0, held[behind : behind + length]))

    def learn(self, num_guessed: int, num_right: int) -> None:
        """How many of the last guesses came true."""
        if num_right == num_guessed:
            self._length = min(2 * self._length, self._max_guesses)
            self._pause = _FIRST_PAUSE
        elif num_right == 0:
            self._length //= 2
        else:
            self._length = num_right + 1
        if self._length == 0:
            self._length = 1
            self._resumes_at = len(self._tokens) + self._pause
            self._pause *= 2
