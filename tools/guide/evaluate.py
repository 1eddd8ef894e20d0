"""The full figures of the bundled guide through chaski itself: `python -m tools.guide.evaluate`.

Prints for own, tuning and held-out wordings how many greedy answers are the intended text, how many say that
the guide is not sure, and the rest, each with its question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import chaski
from tools.guide.topics import Topic, load_topics, unsure

WORDINGS: dict[str, Callable[[Topic], Iterable[str]]] = {
    "own wordings": lambda topic: topic.wordings,
    "tuning wordings": lambda topic: (topic.tuning,),
    "held-out wordings": lambda topic: topic.held_out,
}


def main() -> None:
    model = chaski.load("guide")
    topics = load_topics()
    admissions = {unsure(topic.page) for topic in topics}
    for title, wordings_of in WORDINGS.items():
        cases = [(question, topic) for topic in topics for question in wordings_of(topic)]
        wrong, num_unsure, num_right_pages = [], 0, 0
        for question, topic in cases:
            given = model.chat([{"role": "user", "content": question}], temperature=0).text
            if given in admissions:
                num_unsure += 1
                num_right_pages += given == unsure(topic.page)
            elif given != topic.answer:
                wrong.append(f"  [{topic.name}] {question} -> {given}")
        num_right = len(cases) - len(wrong) - num_unsure
        print(f"{title}: {len(cases)}, of them {num_right} right ({num_right / len(cases):.1%}),")
        print(f"  {num_unsure} not sure, {num_right_pages} of these with the right page, {len(wrong)} wrong:")
        print(*wrong, sep="\n")


if __name__ == "__main__":
    main()
