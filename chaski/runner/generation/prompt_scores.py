"""Log-probabilities of the tokens of a prompt, as if the model had chosen them."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from chaski.chat.events import PromptScores
from chaski.errors import ChaskiError, SamplingError
from chaski.sample import Sampled, scored

__all__ = ["PromptScorer"]


class PromptScorer:
    """A collector of the logits after each token of a prompt but the last, in order.

    num_top: number of top log-probabilities to report for each token.
    """

    def __init__(self, prompt: Items[int], num_top: int) -> None:
        self._prompt = list(prompt)
        self._num_top = num_top
        self._rows: list[npt.NDArray[np.float32]] = []  # without scores yet
        self._scores: list[Sampled] = []
        self._num_taken = 0
        self._is_told = False

    @property
    def is_done(self) -> bool:
        """True if the logits of the whole prompt are complete."""
        return self._num_taken == len(self._prompt) - 1

    def take(self, begin: int, rows: npt.NDArray[np.float32]) -> int:
        """Take logits (n, vocabulary) of the positions from `begin` on -> how many are the prompt's.

        Some may be here already, if they were computed again. Raises ChaskiError where others are missing.
        """
        count = max(0, min(len(rows), len(self._prompt) - 1 - begin))
        known = self._num_taken - begin
        if count and known < 0:
            raise ChaskiError("the computation of the prompt was interrupted; ask again")
        if count > known:
            self._rows.append(rows[max(0, known) : count].copy())
            self._num_taken = begin + count
        return count

    def event(self) -> PromptScores | None:
        """Return the scores of the prompt once: None until all are known, and after they were given.

        Raises SamplingError for logits that are not numbers.
        """
        rows, self._rows = self._rows, []
        for row in (row for several in rows for row in several):
            token_id = self._prompt[len(self._scores) + 1]
            try:
                self._scores.append(scored(row, token_id, self._num_top))
            except SamplingError as error:
                raise SamplingError(f"token {len(self._scores)} of the prompt: {error}") from None
        if self._is_told or not self.is_done:
            return None
        self._is_told = True
        return PromptScores(tuple(self._scores))
