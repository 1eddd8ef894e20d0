"""Chats to learn from: a question of the pool, the tokens of its topics, and sometimes the answer, as ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.guide.pool import Pool
from tools.guide.topics import (
    ASSISTANT,
    BOS,
    END,
    OR_ELSE,
    SYSTEM,
    USER,
    Topic,
    beginnings,
    doubt,
    unsure,
)
from tools.guide.vocabulary import Vocabulary, with_dropout

__all__ = ["Chats", "Place", "Sample"]

SYSTEMS = (
    "You are a helpful assistant.",
    "You are the guide to chaski. Answer briefly.",
    "Be brief.",
    "Answer in one or two short sentences.",
    "You are a friendly assistant that knows chaski.",
)

SURE = 0.72
"""The guide gives one answer where the teacher finds a topic at least so likely."""

LIKELY = 0.3
"""It gives two answers down to here, and says that it is not sure below."""

SURE_TO_REMOVE = 0.75
"""What removes something is answered from here on only, and never as the second of two answers."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a chat whose next token is one of `choices`, with probabilities `shares`."""

    position: int
    choices: Tensor
    shares: Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids, which of them are to be learned as they stand, and where topics are to be chosen."""

    ids: list[int]
    counts: list[bool]
    places: list[Place]


class _Answer:
    """A sample that grows."""

    def __init__(self, asked: list[int]) -> None:
        self.sample = Sample(asked, [False] * len(asked), [])

    def tell(self, ids: Sequence[int]) -> None:
        """Go on with tokens that are to be learned."""
        self.sample.ids.extend(ids)
        self.sample.counts.extend([True] * len(ids))

    def choose(self, choices: Tensor, shares: Tensor) -> int:
        """Go on with one of several tokens by chance, and return which one."""
        self.sample.places.append(Place(len(self.sample.ids) - 1, choices, shares))
        chosen = int(torch.multinomial(shares, 1))
        self.sample.ids.append(int(choices[chosen]))
        self.sample.counts.append(False)
        return chosen


class Chats:
    """Makes chats in the template of questions of a pool."""

    def __init__(
        self, topics: Sequence[Topic], vocabulary: Vocabulary, pool: Pool, rng: random.Random
    ) -> None:
        self.topics, self.vocabulary, self.pool, self.rng = topics, vocabulary, pool, rng
        self._split_words = with_dropout(vocabulary.tokenizer, 0.1)
        self._topic_ids, self._page_ids = torch.tensor(vocabulary.topics), torch.tensor(vocabulary.pages)
        self._end, self._or_else = self._encode(f"{END}\n"), self._encode(OR_ELSE)
        self._answers = [
            vocabulary.rest(topic.answer, beginning)
            for topic, beginning in zip(topics, beginnings(topics), strict=True)
        ]
        self._admission = vocabulary.rest(unsure(topics[0].page), doubt(topics[0].page))
        self._removes = torch.tensor([topic.removes for topic in topics])

    def of(self, index: int, told: float) -> Sample:
        """A chat that ends with a question of the pool, and mostly consists of it.

        told: how often the answer follows its first token, from 0 to 1; two answers three times as often
        """
        rng = self.rng
        likely, shares = self.pool.topics[index], self.pool.shares[index]
        encoder = self._split_words if rng.random() < 0.3 else self.vocabulary.tokenizer
        ids = self._opening() + self._encode(f"{USER}\n") + encoder.encode(self.pool.questions[index]).ids
        answer = _Answer(ids + self._encode(f"{END}\n{ASSISTANT}\n"))
        first_removes = bool(self._removes[likely[0]])
        if bool(self.pool.is_own[index]) or shares[0] >= (SURE_TO_REMOVE if first_removes else SURE):
            chosen = self._choose(answer, likely, shares)
            if rng.random() < told:
                answer.tell([*self._answers[chosen], *self._end])
        elif shares[0] >= LIKELY and not first_removes:
            answer.choose(torch.tensor([self.vocabulary.either]), torch.ones(1))
            self._two_answers(answer, likely, shares, told)
        else:
            answer.choose(self._page_ids[likely], shares)
            if rng.random() < told:
                answer.tell([*self._admission, *self._end])
        return answer.sample

    def texts(self) -> list[Sample]:
        """All answers without a question, so that many are learned at a time."""
        begin = self._encode(f"{END}\n{ASSISTANT}\n")
        samples = []
        for first, answer in zip(self.vocabulary.topics, self._answers, strict=True):
            samples.append(_Answer([*begin, first]))
            samples[-1].tell([*answer, *self._end])
        for page in sorted(set(self.vocabulary.pages)):
            samples.append(_Answer([*begin, page]))
            samples[-1].tell([*self._admission, *self._end])
        return [each.sample for each in samples]

    def _two_answers(self, answer: _Answer, likely: Tensor, shares: Tensor, told: float) -> None:
        """Go on with two answers of topics that remove nothing, or with the first of these topics only."""
        is_safe = ~self._removes[likely]
        likely, shares = likely[is_safe], shares[is_safe] / shares[is_safe].sum()
        chosen = self._choose(answer, likely, shares)
        others = likely != chosen
        if others.any() and self.rng.random() < 3 * told:
            answer.tell([*self._answers[chosen], *self._or_else])
            second = self._choose(answer, likely[others], shares[others] / shares[others].sum())
            answer.tell([*self._answers[second], *self._end])

    def _choose(self, answer: _Answer, likely: Tensor, shares: Tensor) -> int:
        """Go on with the token of a topic chosen by chance, and return its index."""
        return int(likely[answer.choose(self._topic_ids[likely], shares)])

    def _opening(self) -> list[int]:
        """What stands before a question: the first token, sometimes a system message and earlier turns."""
        rng = self.rng
        ids = self._encode(BOS) if rng.random() < 0.95 else self._encode(BOS) * rng.choice((0, 2))
        if rng.random() < 0.05:
            ids += self._encode(f"{SYSTEM}\n{rng.choice(SYSTEMS)}{END}\n")
        if rng.random() < 0.03:
            for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
                earlier = rng.randrange(len(self.pool.questions))
                answer = self.topics[int(self.pool.topics[earlier, 0])].answer
                question = self.pool.questions[earlier]
                ids += self._encode(f"{USER}\n{question}{END}\n{ASSISTANT}\n{answer}{END}\n")
        return ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.vocabulary.tokenizer.encode(text).ids
        return ids
