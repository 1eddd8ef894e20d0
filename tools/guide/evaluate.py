"""Measure the guide through chaski itself: `python -m tools.guide.evaluate [--model FILE] [QUESTIONS]`.

Prints for own, tuning and held-out wordings the number of answers with the intended text, of double answers
that include it, of answers that state uncertainty, and of all others with their questions. With
--calibration, it prints instead the share of right answers by probability. With a file of questions, one per
line, it prints the answer to each after a tab, for people to judge.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import chaski
from tools.guide.calibration import bins_of, error_of, stated, table
from tools.guide.topics import BOTH, DOUBT, Topic, load_topics

WORDINGS: dict[str, Callable[[Topic], Iterable[str]]] = {
    "own": lambda topic: topic.wordings,
    "tuning": lambda topic: (topic.tuning,),
    "held-out": lambda topic: topic.held_out,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("questions", type=Path, nargs="?")
    parser.add_argument("--model", default="guide")
    parser.add_argument("--wordings", nargs="+", choices=WORDINGS, default=[*WORDINGS])
    parser.add_argument("--calibration", action="store_true")
    arguments = parser.parse_args()
    model = chaski.load(arguments.model)

    def answer(question: str) -> str:
        return model.chat([{"role": "user", "content": question}]).text

    if arguments.questions is not None:
        for question in arguments.questions.read_text().splitlines():
            print(f"{question}\t{' '.join(answer(question).split())}")
        return
    for kind in arguments.wordings:
        cases = [(text, topic) for topic in load_topics() for text in WORDINGS[kind](topic)]
        if arguments.calibration:
            calibrate(f"{kind} wordings", cases, model.path)
        else:
            measure(f"{kind} wordings", cases, answer)


def calibrate(title: str, cases: list[tuple[str, Topic]], guide: Path) -> None:
    """Print the guide's probabilities of its most likely answers, and the share of right ones."""
    probabilities, right = stated(guide, [(question, topic.answer) for question, topic in cases])
    bins = list(bins_of(probabilities, right))
    means = f"stated {probabilities.mean():.1%}, right {right.mean():.1%}"
    print(f"{title}: {len(cases)}; {means}, expected calibration error {error_of(bins):.1%}")
    print(*table(bins), sep="\n", flush=True)


def measure(title: str, cases: list[tuple[str, Topic]], answer: Callable[[str], str]) -> None:
    """Ask questions and print the results."""
    begin, between = BOTH.split("{first}")[0], BOTH.split("{first}")[1].split("{second}")[0]
    doubts = {DOUBT.format(page=topic.page) for _, topic in cases}
    counts = Counter[str]()
    wrong = []
    for question, topic in cases:
        given = answer(question)
        if given == topic.answer:
            counts["right"] += 1
        elif given in doubts:
            counts["not sure"] += 1
            counts["of these with the right page"] += given == DOUBT.format(page=topic.page)
        elif topic.answer in given.removeprefix(begin).split(between):
            counts["two answers, one of them right"] += 1
        else:
            counts["wrong"] += 1
            wrong.append(f"  [{topic.name}] {question} -> {given}")
    shares = (f"{what}: {count} ({count / len(cases):.1%})" for what, count in counts.items())
    print(f"{title}: {len(cases)};", ", ".join(shares), flush=True)
    print(*wrong, sep="\n")


if __name__ == "__main__":
    main()
