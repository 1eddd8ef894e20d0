"""The texts of a guide's answers, and how the vector of a question chooses one of them.

The GGUF file of a guide contains a second GGUF file as the value of a metadata key. This file is a sentence
embedding model, and its metadata contain the answers. The probability of an answer is a softmax over `scale ·
(row · x) + bias`, where x is the vector of the question; each answer has an int8 row, a scale and a bias. If
the probability of the most likely answer is high enough, that answer is given. Otherwise two answers are
given, or the most likely page. Answers that need care because they remove something are never among the two.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import GGUFError
from chaski.formats.gguf import GGUFFile
from chaski.guide.spelling import known_words, spelled

__all__ = ["ANSWERS", "AnswerTexts", "spread"]

ANSWERS = "chaski.answers"
"""The metadata key whose value is the GGUF file with the encoder and the answers."""


class AnswerTexts(Struct, frozen=True):
    """The n answers of a file, and the parameters that choose one of them.

    texts         the answers
    pages         the page with more about each answer
    is_careful    (n,) whether an answer needs care
    rows          (n, length of vectors) int8; scales and biases (n,)
    sure          the least probability of an answer that is given alone; `careful` is that of one with care
    likely        the least probability of the first of two answers
    words         words that the encoder knows; they replace words that are one typing error away
    both, doubt   the text around two answers, `{first}` and `{second}`, and the text with a `{page}` instead
    """

    texts: list[str]
    pages: list[str]
    is_careful: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    biases: npt.NDArray[np.float32]
    sure: float
    careful: float
    likely: float
    words: frozenset[str]
    both: str
    doubt: str

    @classmethod
    def of(cls, file: GGUFFile) -> AnswerTexts:
        """Read the answers. Raises GGUFError for a key that is missing or has the wrong type or length."""
        texts = list(file.get("answers.texts", list[str]))
        pages = list(file.get("answers.pages", list[str]))
        is_careful = np.asarray(file.get("answers.is_careful", list[bool]))
        rows = file.get("answers.rows", list[int])
        scales, biases = (file.get(f"answers.{name}", list[float]) for name in ("scales", "biases"))
        count = len(texts)
        lengths = {len(pages), len(is_careful), len(scales), len(biases)}
        if not count or lengths != {count} or rows.dtype != np.int8 or len(rows) % count:
            raise GGUFError(
                f"{file.path}: the guide's answers and the arrays that choose among them have different "
                "lengths; get a complete copy of the file"
            )
        return cls(
            texts,
            pages,
            is_careful,
            rows.reshape(count, -1),
            np.asarray(scales, np.float32),
            np.asarray(biases, np.float32),
            sure=file.get("answers.sure", float),
            careful=file.get("answers.careful", float),
            likely=file.get("answers.likely", float),
            words=known_words(file.get("tokenizer.ggml.tokens", list[str])),
            both=file.get("answers.both", str),
            doubt=file.get("answers.doubt", str),
        )

    def probabilities(self, vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the probability of each answer (n,) for the vector of a question (length of vectors,)."""
        logits = (self.rows @ vector.astype(np.float64)) * self.scales + self.biases
        shares = np.exp(logits - logits.max())
        found: npt.NDArray[np.float64] = shares / shares.sum()
        return found

    def chosen(self, probabilities: npt.NDArray[np.float64]) -> str:
        """Return the text to answer with, from the probabilities (n,) of all answers."""
        best = int(probabilities.argmax())
        if probabilities[best] >= (self.careful if self.is_careful[best] else self.sure):
            return self.texts[best]
        others = [each for each in probabilities.argsort()[::-1].tolist() if not self.is_careful[each]]
        if probabilities[best] >= self.likely and best in others and len(others) > 1:
            first, second = others[:2]
            return _filled(self.both, first=self.texts[first], second=self.texts[second])
        pages: dict[str, float] = {}
        for page, share in zip(self.pages, probabilities.tolist(), strict=True):
            pages[page] = pages.get(page, 0.0) + share
        return _filled(self.doubt, page=max(pages, key=pages.__getitem__))


def spread(text: str, words: Collection[str] = ()) -> str:
    """Return a text in the form that encoders of answers read: lower case, with a space before each word and
    each other sign.

    Misspelled words are replaced by the words of `words` that were meant.
    """
    parted = "".join(f" {word}" for word in re.findall(r"[^\W_]+|[^\w\s]|_", text.lower()))
    return spelled(parted, words)


def _filled(text: str, **values: str) -> str:
    """Return a text with its names in braces replaced by values; other braces stay."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
