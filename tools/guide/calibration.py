"""Check the guide's calibration: compare its probabilities with its share of right answers.

A question counts as right if the most likely answer belongs to its topic, whatever the guide then writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import chaski
from chaski.formats.gguf import open_gguf
from chaski.guide.answers import ANSWERS, AnswerTexts, spread

__all__ = ["BINS", "Bin", "bins_of", "error_of", "stated", "table"]

BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Questions with a probability of at least `begin` and less than `end`: their number, and both means."""

    begin: float
    end: float
    count: int
    stated: float
    right: float


def stated(guide: Path, cases: Sequence[tuple[str, str]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the probability of the most likely answer (n,), and whether it is right (n,), for n questions.

    `cases` are questions, each with its intended answer.
    """
    with TemporaryDirectory() as folder:
        inside = Path(folder) / "answers.gguf"
        with open_gguf(guide) as file:
            file.get(ANSWERS, list[int]).tofile(inside)
        with open_gguf(inside) as file:
            texts = AnswerTexts.of(file)
        with chaski.load(inside, prompt_cache=False) as encoder:
            vectors = encoder.embed([spread(text, texts.words) for text, _ in cases], truncate=True)
    found = [texts.probabilities(np.asarray(vector, np.float32)) for vector in vectors]
    best = [int(each.argmax()) for each in found]
    right = [texts.texts[index] == answer for index, (_, answer) in zip(best, cases, strict=True)]
    return np.array([each.max() for each in found]), np.array(right)


def bins_of(probabilities: NDArray[np.float64], right: NDArray[np.bool_]) -> Iterator[Bin]:
    """Return the bins that contain questions, out of BINS bins of the same width."""
    places = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    for place in range(BINS):
        inside = places == place
        if count := int(inside.sum()):
            means = float(probabilities[inside].mean()), float(right[inside].mean())
            yield Bin(place / BINS, (place + 1) / BINS, count, *means)


def error_of(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error: the distance of a bin's means, weighted by its questions."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.stated - each.right) for each in bins) / total


def table(bins: Sequence[Bin]) -> Iterator[str]:
    """Return the lines of a table in Markdown."""
    yield "| stated probability | questions | mean of what is stated | share that is right |"
    yield "|---|---|---|---|"
    for each in bins:
        width = f"{each.begin:.0%} to {each.end:.0%}".replace("%", " %")
        yield f"| {width} | {each.count:,} | {100 * each.stated:.1f} % | {100 * each.right:.1f} % |"
