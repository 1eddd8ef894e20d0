"""The bundled guide answers with the intended text. The full figures come from tools/guide/evaluate.py."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import chaski
from chaski import LLM

TOPICS = [
    topic
    for path in sorted((Path(__file__).parents[2] / "tools/guide/topics").glob("*.toml"))
    for topic in tomllib.loads(path.read_text()).values()
]


@pytest.fixture(scope="module")
def guide() -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHASKI_ANSWERS", "1")
        with chaski.load("guide") as model:
            yield model


def answer(guide: LLM, question: str) -> str:
    return guide.chat([{"role": "user", "content": question}]).text


def cases(wordings: str, count: int) -> list[tuple[str, str]]:
    """The same random questions each time, with the intended answers."""
    every = [(question, topic["answer"]) for topic in TOPICS for question in topic[wordings].splitlines()]
    return random.Random(7).sample(every, count)


def share_right(guide: LLM, asked: list[tuple[str, str]]) -> float:
    return sum(answer(guide, question) == intended for question, intended in asked) / len(asked)


def test_own_wordings(guide: LLM) -> None:
    assert share_right(guide, cases("wordings", 150)) >= 0.75


def test_held_out_wordings(guide: LLM) -> None:
    """Most others get an answer that is about the same, two answers or none."""
    assert share_right(guide, cases("held_out", 150)) >= 0.6


def test_unclear_questions(guide: LLM) -> None:
    """Questions that are halves of two often get two answers, or that the guide is not sure, with a page."""
    texts, pages = {topic["answer"] for topic in TOPICS}, {topic["page"] for topic in TOPICS}
    rng = random.Random(7)
    unsure = 0
    for _ in range(60):
        first, second = rng.sample(TOPICS, 2)
        begin, end = (rng.choice(topic["wordings"].splitlines()).split() for topic in (first, second))
        text = answer(guide, " ".join(begin[: (len(begin) + 1) // 2] + end[len(end) // 2 :]))
        if text in texts:
            continue
        unsure += 1
        if both := re.fullmatch(r"Perhaps one of these is it\.\n\n(.*)\n\nOr this:\n\n(.*)", text, re.DOTALL):
            assert set(both.groups()) <= texts
        else:
            page = re.fullmatch(r"I am not sure\. Perhaps `(.*)` tells; or ask me in other words\.", text)
            assert page is not None
            assert page[1] in pages
    assert unsure >= 15


def test_nothing_is_removed_by_mistake(guide: LLM) -> None:
    """Wordings of other topics do not get an answer that removes something."""
    removing = {
        t["answer"] for t in TOPICS if re.search(r"pip uninstall|chaski rm|--empty|prune", t["answer"])
    }
    asked = cases("held_out", 300)
    wrong = [(q, answer(guide, q)) for q, intended in asked if intended not in removing]
    assert [(question, text) for question, text in wrong if text in removing] == []


def test_second_question_of_a_chat(guide: LLM) -> None:
    (first, said), (second, intended) = cases("wordings", 2)
    past = [{"role": "user", "content": first}, {"role": "assistant", "content": said}]
    assert guide.chat([*past, {"role": "user", "content": second}]).text == intended
