"""The choices of a beam search, as plain numbers: the beams that continue, and the best answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chaski.chat.beams import BeamOptions
from chaski.sample import Sampled

__all__ = ["Candidate", "Hypothesis", "RankedAnswers", "best_candidates"]

F64 = npt.NDArray[np.float64]


class Candidate(NamedTuple):
    """A beam with one more token. Candidates sort with the best one first.

    Equally likely candidates are sorted by beam, and within a beam by token id.
    """

    cost: float
    beam: int
    token: int
    logprob: float


class Hypothesis(NamedTuple):
    """The tokens of a finished answer, and its score. `is_cut`: whether it ended because it reached its full
    length.
    """

    score: float
    answer: tuple[Sampled, ...]
    is_cut: bool


def best_candidates(beams: Iterable[tuple[float, F64]], count: int) -> list[Candidate]:
    """Return the `count` best candidates of all beams.

    beams: the score of each beam, and the log-probability of each next token (vocabulary,).
    """
    found: list[Candidate] = []
    for index, (score, logprobs) in enumerate(beams):
        kept = min(count, len(logprobs))
        least = np.partition(logprobs, -kept)[-kept]
        tokens = np.flatnonzero((logprobs >= least) & np.isfinite(logprobs))
        found += [
            Candidate(-(score + logprob), index, token, logprob)
            for token, logprob in zip(tokens.tolist(), logprobs[tokens].tolist(), strict=True)
        ]
    return sorted(found)[:count]


class RankedAnswers:
    """The finished answers of a search, best first, at most `num_beams`.

    `max_length` is the number of tokens at which every answer ends.
    """

    def __init__(self, options: BeamOptions, max_length: int) -> None:
        self.found: list[Hypothesis] = []
        self._options = options
        self._max_length = max_length

    def add(self, ended: Iterable[tuple[float, tuple[Sampled, ...], bool]]) -> None:
        """Add finished answers: the sum of the log-probabilities of each, its tokens, and `is_cut`."""
        penalty = self._options.length_penalty
        self.found += [
            Hypothesis(logprob / len(answer) ** penalty, answer, is_cut) for logprob, answer, is_cut in ended
        ]
        self.found.sort(key=lambda each: -each.score)
        del self.found[self._options.num_beams :]

    def is_final(self, logprob: float, length: int) -> bool:
        """Return whether open answers of `length` tokens cannot improve the result; the best of them has this
        `logprob`.
        """
        options = self._options
        if len(self.found) < options.num_beams:
            return False
        if options.early_stopping is True:
            return True
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self._max_length
        return bool(logprob / length**options.length_penalty <= self.found[-1].score)
