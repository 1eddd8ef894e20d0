"""The bundled guide answers with the intended text. The full figures come from tools/guide/evaluate.py."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator

import pytest

import chaski
from chaski import LLM
from tools.guide.topics import BOTH, DOUBT, Topic, load_topics

TOPICS = load_topics()


@pytest.fixture(scope="module")
def guide() -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHASKI_ANSWERS", "1")
        with chaski.load("guide") as model:
            yield model


def answer(guide: LLM, question: str) -> str:
    return guide.chat([{"role": "user", "content": question}]).text


def cases(wordings_of: Callable[[Topic], Iterable[str]], count: int) -> list[tuple[str, Topic]]:
    """Return the same random questions each time, with the intended topics."""
    every = [(question, topic) for topic in TOPICS for question in wordings_of(topic)]
    return random.Random(7).sample(every, count)


def own(topic: Topic) -> tuple[str, ...]:
    return topic.wordings


def held_out(topic: Topic) -> tuple[str, ...]:
    return topic.held_out


def share_right(guide: LLM, asked: list[tuple[str, Topic]]) -> float:
    return sum(answer(guide, question) == topic.answer for question, topic in asked) / len(asked)


@pytest.mark.timed
@pytest.mark.long
def test_own_wordings(guide: LLM) -> None:
    assert share_right(guide, cases(own, 150)) >= 0.75


@pytest.mark.timed
@pytest.mark.long
def test_held_out_wordings(guide: LLM) -> None:
    """Most of the others get a similar answer, two answers, or none."""
    assert share_right(guide, cases(held_out, 150)) >= 0.6


@pytest.mark.long
def test_unclear_questions(guide: LLM) -> None:
    """Questions made from halves of two often get two answers, or an unsure answer with a page."""
    texts, pages = {topic.answer for topic in TOPICS}, {topic.page for topic in TOPICS}
    rng = random.Random(7)
    unsure = 0
    for _ in range(60):
        first, second = rng.sample(TOPICS, 2)
        begin, end = (rng.choice(topic.wordings).split() for topic in (first, second))
        text = answer(guide, " ".join(begin[: (len(begin) + 1) // 2] + end[len(end) // 2 :]))
        if text in texts:
            continue
        unsure += 1
        if both := re.fullmatch(pattern_of(BOTH), text, re.DOTALL):
            assert set(both.groups()) <= texts
        else:
            page = re.fullmatch(pattern_of(DOUBT), text)
            assert page is not None
            assert page[1] in pages
    assert unsure >= 15


@pytest.mark.timed
@pytest.mark.long
def test_nothing_is_removed_by_mistake(guide: LLM) -> None:
    """Wordings of other topics never get an answer that removes something."""
    removing = {topic.answer for topic in TOPICS if topic.removes}
    given = [
        (question, answer(guide, question)) for question, topic in cases(held_out, 300) if not topic.removes
    ]
    assert [(question, text) for question, text in given if text in removing] == []


def test_second_question_of_a_chat(guide: LLM) -> None:
    """It gets the same answer as alone."""
    (first, topic), (second, _) = cases(own, 2)
    past = [{"role": "user", "content": first}, {"role": "assistant", "content": topic.answer}]
    found = guide.chat([*past, {"role": "user", "content": second}]).text
    assert found == answer(guide, second) != topic.answer


def pattern_of(form: str) -> str:
    """Return a pattern for texts of this form, with a group for each name in braces."""
    return re.sub(r"\\\{\w+\\\}", "(.*)", re.escape(form))
