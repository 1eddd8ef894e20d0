"""Random chats to learn from, as token ids: questions re-worded, answers as written."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from tools.guide.rewording import reword
from tools.guide.topics import ASSISTANT, BOS, END, SYSTEM, USER, Topic, unsure
from tools.guide.vocabulary import with_dropout

__all__ = ["Sample", "Sampler"]

SYSTEMS = (
    "You are a helpful assistant.",
    "You are the guide to chaski. Answer briefly.",
    "Be brief.",
    "Answer in one or two short sentences.",
    "You are a friendly assistant that knows chaski.",
)


UNCLEAR = 0.05
"""Share of questions that are mixed of two, so that the guide learns to say that it is not sure."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids and, for each of them, whether its prediction counts."""

    ids: list[int]
    counts: list[bool]


class Keywords:
    """The words that tell a topic from the others, for questions of a few words in no order."""

    def __init__(self, topics: Sequence[Topic]) -> None:
        used = {topic.name: Counter(_words(" ".join(topic.wordings))) for topic in topics}
        topics_with = Counter(word for words in used.values() for word in words)
        self.rare = {name: [w for w in words if topics_with[w] <= 5] for name, words in used.items()}
        self.own = {name: [w for w in words if topics_with[w] == 1] for name, words in used.items()}
        self.common = [word for word, count in topics_with.items() if count > 30]

    def pick(self, topic: Topic, rng: random.Random) -> str:
        """One to six words of which at least one belongs to this topic alone, or two are rare."""
        own, rare = self.own[topic.name], self.rare[topic.name]
        words = [rng.choice(own)] if own and rng.random() < 0.8 else rng.sample(rare, min(2, len(rare)))
        words += rng.sample(rare, min(rng.choice((0, 0, 1, 2)), len(rare)))
        words += rng.sample(self.common, rng.choice((0, 1, 2)))
        rng.shuffle(words)
        return " ".join(dict.fromkeys(words))


def _words(text: str) -> list[str]:
    return re.findall(r"[\w./@-]*\w", text.lower())


class Sampler:
    """Endless random chats in the template: questions re-worded, answers as written."""

    def __init__(self, topics: Sequence[Topic], tokenizer: Tokenizer, rng: random.Random) -> None:
        self.pairs = [(topic, wording) for topic in topics for wording in topic.wordings]
        self.tokenizer, self.split_words = tokenizer, with_dropout(tokenizer, 0.1)
        self.keywords = Keywords(topics)
        self.rng = rng
        self.deck: list[tuple[Topic, str]] = []
        self.on_page: dict[str, list[tuple[Topic, str]]] = {}
        for pair in self.pairs:
            self.on_page.setdefault(pair[0].page, []).append(pair)

    def chat(self) -> Sample:
        """Mostly one turn; some chats go on, so that the guide answers the last question and no other."""
        rng = self.rng
        turns = rng.choice((2, 2, 3, 4, 6, 12)) if rng.random() < 0.08 else 1
        opening = self._encode(BOS) if rng.random() < 0.95 else self._encode(BOS) * rng.choice((0, 2))
        if rng.random() < 0.05:
            opening += self._encode(f"{SYSTEM}\n{rng.choice(SYSTEMS)}{END}\n")
        sample = Sample(opening, [False] * len(opening))
        for _ in range(turns):
            self._add_turn(sample, whole=turns > 1 or rng.random() < 0.2)
        return sample

    def _add_turn(self, sample: Sample, whole: bool) -> None:
        topic, wording = self._next_pair()
        encoder = self.split_words if self.rng.random() < 0.3 else self.tokenizer
        chance, text, intended = self.rng.random(), wording, topic.answer
        if chance < 0.12:
            text = self.keywords.pick(topic, self.rng)
        elif chance < 0.12 + UNCLEAR:
            text, intended = self._unclear(topic, wording)
        question = encoder.encode(reword(text, self.rng)).ids
        # The first words decide which answer it is; the rest is soon known by heart.
        answer = self._encode(f"{intended}{END}\n")[
            : None if whole else 16 if intended != topic.answer else 8
        ]
        asked = [*self._encode(f"{USER}\n"), *question, *self._encode(f"{END}\n{ASSISTANT}\n")]
        sample.ids.extend(asked + answer)
        sample.counts.extend([False] * len(asked) + [True] * len(answer))

    def _unclear(self, topic: Topic, wording: str) -> tuple[str, str]:
        """Halves of two questions that one page answers, and that the guide is not sure."""
        other, second = self.rng.choice(self.on_page[topic.page])
        if other is topic:
            return wording, topic.answer
        first_words, last_words = wording.split(), second.split()
        text = " ".join(first_words[: (len(first_words) + 1) // 2] + last_words[len(last_words) // 2 :])
        return text, unsure(topic.page)

    def _next_pair(self) -> tuple[Topic, str]:
        if not self.deck:
            self.deck = self.rng.sample(self.pairs, len(self.pairs))
        return self.deck.pop()

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids
