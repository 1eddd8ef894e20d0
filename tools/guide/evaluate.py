"""The full figures of the bundled guide through chaski itself: `python -m tools.guide.evaluate [QUESTIONS]`.

Prints for own, tuning and held-out wordings how many greedy answers are the intended text, how many are two
of which one is that, how many say that the guide is not sure, and the rest, each with its question. With a
file of questions, one a line, it prints the answer to each instead, behind a tab: for people to judge.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import chaski
from tools.guide.topics import EITHER, OR_ELSE, Topic, load_topics, unsure

WORDINGS: dict[str, Callable[[Topic], Iterable[str]]] = {
    "own wordings": lambda topic: topic.wordings,
    "tuning wordings": lambda topic: (topic.tuning,),
    "held-out wordings": lambda topic: topic.held_out,
}


def main() -> None:
    model = chaski.load("guide")

    def answer(question: str) -> str:
        return model.chat([{"role": "user", "content": question}], temperature=0).text

    if len(sys.argv) > 1:
        for question in Path(sys.argv[1]).read_text().splitlines():
            print(f"{question}\t{' '.join(answer(question).split())}")
        return
    for title, wordings_of in WORDINGS.items():
        cases = [(question, topic) for topic in load_topics() for question in wordings_of(topic)]
        measure(title, cases, answer)


def measure(title: str, cases: list[tuple[str, Topic]], answer: Callable[[str], str]) -> None:
    """Ask questions, and print what came of them."""
    admissions = {unsure(topic.page) for _, topic in cases}
    counts = Counter[str]()
    wrong = []
    for question, topic in cases:
        given = answer(question)
        if given == topic.answer:
            counts["right"] += 1
        elif given in admissions:
            counts["not sure"] += 1
            counts["of these with the right page"] += given == unsure(topic.page)
        elif topic.answer in given.removeprefix(EITHER).split(OR_ELSE):
            counts["two answers, one of them right"] += 1
        else:
            counts["wrong"] += 1
            wrong.append(f"  [{topic.name}] {question} -> {given}")
    shares = (f"{what}: {count} ({count / len(cases):.1%})" for what, count in counts.items())
    print(f"{title}: {len(cases)};", ", ".join(shares), flush=True)
    print(*wrong, sep="\n")


if __name__ == "__main__":
    main()
