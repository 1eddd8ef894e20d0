"""Answers in a model's file: the answer of each question, and no other text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf, open_inside
from chaski.guide.answers import ANSWERS, AnswerTexts, spread
from tests.guide.answering_llama import ANSWER_OF, write_answering_llama

TEXTS = [text for text, _, _ in ANSWER_OF.values()]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_answering_llama(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module", autouse=True)
def answers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHASKI_ANSWERS", "1")
        yield


@pytest.fixture(scope="module")
def model(path: Path, answers: None) -> Iterator[chaski.LLM]:
    with chaski.load(path, threads=1, parallel=2) as opened:
        yield opened


def asked(question: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": question}]


@pytest.mark.parametrize("question", list(ANSWER_OF))
def test_a_known_question(model: chaski.LLM, question: str) -> None:
    found = model.chat(asked(question))
    assert (found.text, found.done_reason) == (ANSWER_OF[question][0], "stop")
    assert model.chat(asked(f"  {question.upper()} ")).text == found.text
    assert model.chat(asked([{"type": "text", "text": question}])).text == found.text


def test_earlier_messages_change_nothing(model: chaski.LLM) -> None:
    first, second, _ = ANSWER_OF
    talk = [*asked(first), *asked("It is so.", "assistant"), *asked(second)]
    assert model.chat(talk).text == ANSWER_OF[second][0]


def test_a_worker_finds_the_same(path: Path) -> None:
    question = next(iter(ANSWER_OF))
    with chaski.Worker(path, threads=1) as worker:
        assert worker.chat(asked(question)).text == ANSWER_OF[question][0]


def test_the_encoder_is_closed_with_the_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = [], chaski.LLM.close

    def closing(model: chaski.LLM) -> None:
        closed.append(model)
        close(model)

    monkeypatch.setattr(chaski.LLM, "close", closing)
    with chaski.load(path, threads=1) as model:
        model.chat(asked(next(iter(ANSWER_OF))))
    assert closed[0] is model
    assert len(closed) == 2
    assert all(repr(each).endswith(": closed>") for each in closed)


def test_who_does_not_want_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_ANSWERS", "0")
    with chaski.load(path, threads=1) as model:
        assert model.chat(asked(next(iter(ANSWER_OF))), num_predict=4).text not in TEXTS


def test_what_is_constrained_or_begun_is_left_alone(model: chaski.LLM) -> None:
    question = next(iter(ANSWER_OF))
    assert model.chat(asked(question), choice=["other"]).text == "other"
    assert model.chat(asked(question), format={"type": "integer"}, num_predict=4).text not in TEXTS
    begun = [*asked(question), *asked("So", "assistant")]
    assert model.chat(begun, num_predict=4).text not in TEXTS
    assert model.generate(question, num_predict=4).text not in TEXTS


def texts_of(path: Path) -> AnswerTexts:
    with open_inside(path, ANSWERS) as file:
        return AnswerTexts.of(file)


@pytest.mark.parametrize(
    ("shares", "chosen"),
    [
        ((0.6, 0.3, 0.1), TEXTS[0]),
        ((0.45, 0.4, 0.15), f"{TEXTS[0]} Or: {TEXTS[1]}"),
        ((0.45, 0.15, 0.4), f"{TEXTS[0]} Or: {TEXTS[1]}"),  # an answer that removes something is never second
        ((0.1, 0.2, 0.7), "Not sure; see docs/cli.md."),  # and it needs a higher probability
        ((0.05, 0.05, 0.9), TEXTS[2]),
        ((0.35, 0.3, 0.35), "Not sure; see docs/store.md."),
    ],
)
def test_how_sure_it_must_be(path: Path, shares: tuple[float, ...], chosen: str) -> None:
    assert texts_of(path).chosen(np.array(shares)) == chosen


def test_no_second_answer_is_one_that_is_given_with_care(tmp_path: Path) -> None:
    path = write_answering_llama(tmp_path, is_careful=np.array([False, True, True]))
    assert texts_of(path).chosen(np.array([0.45, 0.4, 0.15])) == "Not sure; see docs/store.md."


def test_braces_of_answers_are_not_read(tmp_path: Path) -> None:
    path = write_answering_llama(tmp_path, texts=["{second}", "{page.__class__}", "c"], doubt="{page} {0}")
    texts = texts_of(path)
    assert texts.chosen(np.array([0.45, 0.4, 0.15])) == "{page.__class__} Or: {page.__class__}"
    assert texts.chosen(np.array([0.35, 0.3, 0.35])) == "docs/store.md {0}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pages": ["a page"]}, "different lengths"),
        ({"rows": np.zeros(4, np.int8)}, "different lengths"),
        ({"rows": np.zeros(3 * 64, np.int16)}, "different lengths"),
        ({"scales": None}, "answers.scales.* is missing"),
        ({"sure": 1}, "answers.sure.* is int, not float"),
    ],
)
def test_damaged_answers(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = write_answering_llama(tmp_path, **changed)
    with chaski.load(path, threads=1) as model, pytest.raises(chaski.GGUFError, match=message):
        model.chat(asked("anything"))


def test_vectors_of_another_length(tmp_path: Path) -> None:
    path = write_answering_llama(tmp_path, rows=np.zeros(3 * 32, np.int8))
    with chaski.load(path, threads=1) as model, pytest.raises(chaski.GGUFError, match="vectors of 64"):
        model.chat(asked("anything"))


def test_spread() -> None:
    assert spread("Is `top_p=0.9` OK?") == " is ` top _ p = 0 . 9 ` ok ?"


def test_the_inner_file_is_the_file(path: Path) -> None:
    with open_gguf(path.with_name("inner.gguf")) as alone, open_inside(path, ANSWERS) as inside:
        assert list(inside.metadata) == list(alone.metadata)
        assert inside.tensors.keys() == alone.tensors.keys()
        whole = np.fromfile(path, np.uint8)
        for name, info in inside.tensors.items():
            assert info.path == path
            assert np.array_equal(info.data, alone.tensors[name].data)
            assert np.array_equal(whole[info.offset : info.offset + info.nbytes], info.data)


def test_what_is_no_file_inside(path: Path) -> None:
    with pytest.raises(chaski.GGUFError, match=r"'llama\.nothing' is missing"):
        open_inside(path, "llama.nothing")
    with pytest.raises(chaski.GGUFError, match=r"token_type' is an array of int32, not of bytes"):
        open_inside(path, "tokenizer.ggml.token_type")
