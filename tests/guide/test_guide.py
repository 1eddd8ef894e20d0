"""The bundled guide answers with the intended text. The full figures come from tools/guide/evaluate.py."""

from __future__ import annotations

import random
import tomllib
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
def guide() -> LLM:
    return chaski.load("guide")


def cases(wordings: str, count: int) -> list[tuple[str, str]]:
    """The same random questions each time, with the intended answers."""
    every = [(question, topic["answer"]) for topic in TOPICS for question in topic[wordings].splitlines()]
    return random.Random(7).sample(every, count)


def share_right(guide: LLM, asked: list[tuple[str, str]]) -> float:
    given = [guide.chat([{"role": "user", "content": question}], temperature=0).text for question, _ in asked]
    return sum(text == intended for text, (_, intended) in zip(given, asked, strict=True)) / len(asked)


def test_own_wordings(guide: LLM) -> None:
    assert share_right(guide, cases("wordings", 150)) >= 0.9


def test_held_out_wordings(guide: LLM) -> None:
    assert share_right(guide, cases("held_out", 120)) >= 0.55


def test_unclear_questions(guide: LLM) -> None:
    """Some questions that are halves of two get the answer that the guide is not sure, with a page."""
    pages = {topic["page"] for topic in TOPICS}
    rng = random.Random(7)
    admitted = 0
    for _ in range(60):
        first = rng.choice(TOPICS)
        second = rng.choice([topic for topic in TOPICS if topic["page"] == first["page"]])
        begin, end = (rng.choice(topic["wordings"].splitlines()).split() for topic in (first, second))
        question = " ".join(begin[: (len(begin) + 1) // 2] + end[len(end) // 2 :])
        text = guide.chat([{"role": "user", "content": question}], temperature=0).text
        if text.startswith("I am not sure"):
            assert text.split("`")[1] in pages
            admitted += 1
    assert admitted >= 4


def test_second_question_of_a_chat(guide: LLM) -> None:
    (first, answer), (second, intended) = cases("wordings", 2)
    past = [{"role": "user", "content": first}, {"role": "assistant", "content": answer}]
    assert guide.chat([*past, {"role": "user", "content": second}], temperature=0).text == intended
