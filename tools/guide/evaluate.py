"""The full figures of the bundled guide through chaski itself: `python -m tools.guide.evaluate`.

Prints for own, tuning and held-out wordings how many greedy answers are the intended text, and the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import chaski
from tools.guide.topics import Topic, load_topics

WORDINGS: dict[str, Callable[[Topic], Iterable[str]]] = {
    "own wordings": lambda topic: topic.wordings,
    "tuning wordings": lambda topic: (topic.tuning,),
    "held-out wordings": lambda topic: topic.held_out,
}


def main() -> None:
    model = chaski.load("guide")
    topics = load_topics()
    for title, wordings_of in WORDINGS.items():
        cases = [(question, topic) for topic in topics for question in wordings_of(topic)]
        wrong = []
        for question, topic in cases:
            given = model.chat([{"role": "user", "content": question}], temperature=0).text
            if given != topic.answer:
                wrong.append(f"  [{topic.name}] {question} -> {given}")
        print(f"{title}: {1 - len(wrong) / len(cases):.1%} of {len(cases)}")
        print(*wrong, sep="\n")


if __name__ == "__main__":
    main()
