"""Training questions: re-worded wordings of the topics, and generated questions.

Generated questions have no known topic, so the teacher labels them. They are wordings with similar words,
halves of two wordings, a few words of a topic in any order, and sentences of the docs.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.guide.rewording import reword
from tools.guide.topics import Topic

__all__ = ["Questions", "content_words", "sentences_of"]


class Keywords:
    """The words that distinguish a topic, for questions of a few words in no order."""

    def __init__(self, topics: Sequence[Topic]) -> None:
        used = {topic.name: Counter(content_words(" ".join(topic.wordings))) for topic in topics}
        topics_with = Counter(word for words in used.values() for word in words)
        self.rare = {name: [w for w in words if topics_with[w] <= 8] for name, words in used.items()}
        self.own = {name: [w for w in words if topics_with[w] <= 2] for name, words in used.items()}
        self.common = [word for word, count in topics_with.items() if count > 30]

    def pick(self, topic: Topic, rng: random.Random) -> str:
        """Return one to six words, of which at least one rarely occurs elsewhere, or two are rare."""
        own, rare = self.own[topic.name], self.rare[topic.name]
        words = [rng.choice(own)] if own and rng.random() < 0.6 else rng.sample(rare, min(2, len(rare)))
        words += rng.sample(rare, min(rng.choice((0, 0, 1, 2)), len(rare)))
        words += rng.sample(self.common, rng.choice((0, 1, 2)))
        rng.shuffle(words)
        return " ".join(dict.fromkeys(words))


def content_words(text: str) -> list[str]:
    """Return the words of a text in lower case; names of options and files stay whole."""
    return re.findall(r"[\w./@-]*\w", text.lower())


def sentences_of(pages: Sequence[Path]) -> list[str]:
    """Return sentences of docs pages, without code blocks and tables."""
    found = []
    for page in pages:
        text = re.sub(r"(?ms)^```.*?^```|^\|.*?$|^    .*?$", "", page.read_text())
        for sentence in re.split(r"(?<=[.:;])\s+|\n\n+", re.sub(r"\[([^]]*)\]\([^)]*\)|[`*#]", r"\1", text)):
            plain = " ".join(sentence.split())
            if plain.isascii() and 3 <= len(plain.split()) <= 20:
                found.append(plain)
    return found


class Questions:
    """Endless random questions.

    neighbours: words with similar meanings for words of the wordings. sentences: texts that are not
    questions.
    """

    def __init__(
        self,
        topics: Sequence[Topic],
        neighbours: Mapping[str, Sequence[str]],
        sentences: Sequence[str],
        rng: random.Random,
    ) -> None:
        self.pairs = [(index, wording) for index, topic in enumerate(topics) for wording in topic.wordings]
        self.topics, self.neighbours, self.sentences, self.rng = topics, neighbours, sentences, rng
        self.keywords = Keywords(topics)
        self._deck: list[int] = []

    def own(self) -> tuple[str, int]:
        """Return a re-worded wording and its index in `pairs`. All wordings appear before one repeats."""
        if not self._deck:
            self._deck = self.rng.sample(range(len(self.pairs)), len(self.pairs))
        place = self._deck.pop()
        return reword(self.pairs[place][1], self.rng), place

    def foreign(self) -> str:
        """Return a text without a known topic."""
        chance, (topic, wording) = self.rng.random(), self.rng.choice(self.pairs)
        if chance < 0.45:
            text = self.with_neighbours(wording)
        elif chance < 0.65:
            text = self._halves(wording, self.rng.choice(self.pairs)[1])
        elif chance < 0.75:
            text = self._halves(wording, self.rng.choice(self.topics[topic].wordings))
        elif chance < 0.9:
            text = self.keywords.pick(self.topics[topic], self.rng)
        else:
            text = self.rng.choice(self.sentences)
        return reword(text, self.rng)

    def with_neighbours(self, wording: str) -> str:
        """Replace one to three words by words with similar meanings."""
        words = wording.split()
        known = [at for at, word in enumerate(words) if word.lower().strip("?.!,") in self.neighbours]
        for at in self.rng.sample(known, min(len(known), self.rng.choice((1, 1, 2, 2, 3)))):
            words[at] = self.rng.choice(self.neighbours[words[at].lower().strip("?.!,")])
        return " ".join(words)

    def _halves(self, first: str, second: str) -> str:
        begin, end = first.split(), second.split()
        return " ".join(begin[: (len(begin) + 1) // 2] + end[len(end) // 2 :])
