"""The pool: many questions, and for each what the teacher makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tools.guide.questions import Questions, content_words
from tools.guide.teacher import Teacher, Words, probabilities
from tools.guide.topics import Topic

__all__ = ["Pool", "fit_temperature", "make_pool", "neighbours_of"]

LISTED = 8
"""So many topics a question are kept, the most likely ones."""

ALIKE = 0.55
"""The cosine from which on a word means about the same."""

TRUST = 0.7
"""How much a wording's own topic counts beside what the teacher makes of it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """questions, their likely topics (questions, LISTED) and the probabilities of these, which add up to 1.

    is_own: the question is a wording of its first topic.
    """

    questions: Sequence[str]
    topics: Tensor
    shares: Tensor
    is_own: Tensor

    def save(self, path: Path) -> None:
        torch.save((self.questions, self.topics, self.shares, self.is_own), path)

    @classmethod
    def load(cls, path: Path) -> Pool:
        return cls(*torch.load(path))


def make_pool(questions: Questions, teacher: Teacher, words: Words, size: int, temperature: float) -> Pool:
    """`size` questions, of which a bit more than a half are wordings of topics in other words."""
    known = probabilities(teacher, words, [wording for _, wording in questions.pairs], temperature)
    for row, (topic, _) in enumerate(questions.pairs):
        known[row] *= 1 - TRUST
        known[row, topic] += TRUST
    own = [questions.own() for _ in range(size * 55 // 100)]
    foreign = [questions.foreign() for _ in range(size - len(own))]
    likely = probabilities(teacher, words, foreign, temperature)
    shares, topics = torch.cat([known, likely]).topk(LISTED)
    rows = torch.tensor([row for _, row in own] + [len(known) + row for row in range(len(foreign))])
    shares /= shares.sum(-1, keepdim=True)
    is_own = torch.arange(size) < len(own)
    return Pool([text for text, _ in own] + foreign, topics[rows], shares[rows], is_own)


@torch.no_grad()
def fit_temperature(teacher: Teacher, words: Words, tuning: Sequence[str], target: Tensor) -> float:
    """The temperature at which the teacher is as sure of the topics of tuning wordings as it is right."""
    raw = probabilities(teacher, words, tuning).clamp_min(1e-9).log()
    grid = [0.4 + 0.05 * step for step in range(40)]
    return min(grid, key=lambda t: float(torch.nn.functional.cross_entropy(raw / t, target)))


@torch.no_grad()
def neighbours_of(
    topics: Sequence[Topic], teacher: Teacher, words: Words, encoder: Path
) -> Mapping[str, list[str]]:
    """Up to eight common words of like meaning for each word of the wordings, as the encoder sees them."""
    used = {word for topic in topics for wording in topic.wordings for word in content_words(wording)}
    asked = sorted(word for word in used if word.isalpha() and len(word) > 2)
    pieces = (encoder / "vocab.txt").read_text().splitlines()  # the most frequent ones first
    known = [word for word in pieces if word.isalpha() and word.isascii() and len(word) > 2][:14000]
    teacher.eval()
    parts = [known[start : start + 256] for start in range(0, len(known), 256)]
    vectors = torch.cat([teacher.embed(*words(part)) for part in parts])
    found = {}
    for start in range(0, len(asked), 256):
        part = asked[start : start + 256]
        alike, indices = (teacher.embed(*words(part)) @ vectors.T).topk(9)
        for word, row, scores in zip(part, indices.tolist(), alike.tolist(), strict=True):
            near = [known[index] for index, score in zip(row, scores, strict=True) if score > ALIKE]
            if others := [each for each in near if each != word]:
                found[word] = others[:8]
    teacher.train()
    return found
