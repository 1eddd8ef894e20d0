"""Several prompts in one call, and several answers to one: each equals the answer alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import ContextLengthError, OptionError
from tests.tiny_llama import write_tiny_llama

PROMPTS = ["the end", "in the other", "hello", "the end of it"]
DRAW: Any = {"temperature": 1.0, "num_predict": 12, "logprobs": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chaski.LLM]:
    path = write_tiny_llama(tmp_path_factory.mktemp("several") / "tiny.gguf")
    with chaski.load(path, threads=1, parallel=3) as opened:
        yield opened


def content(answer: chaski.Answer) -> tuple[object, ...]:
    return answer.text, answer.token_ids, answer.logprobs, answer.done_reason


def test_prompts_are_answered_as_alone(model: chaski.LLM) -> None:
    together = model.generate_many(PROMPTS, seed=5, **DRAW)
    alone = [model.generate(prompt, seed=5, **DRAW) for prompt in PROMPTS]
    assert [content(each) for each in together] == [content(each) for each in alone]
    assert model.generate_many([]) == []
    ids = [model.tokenize(prompt) for prompt in PROMPTS]
    assert [content(each) for each in model.generate_many(ids, seed=5, **DRAW)] == list(map(content, alone))


def test_several_answers_have_one_seed_after_the_other(model: chaski.LLM) -> None:
    found = model.generate_many(PROMPTS[:2], n=3, seed=7, **DRAW)
    alone = [model.generate(prompt, seed=seed, **DRAW) for prompt in PROMPTS[:2] for seed in (7, 8, 9)]
    assert [content(each) for each in found] == [content(each) for each in alone]
    assert len({each.text for each in found}) > 2
    assert len({each.text for each in model.generate_many(["the"], n=4, **DRAW)}) > 1, "without a seed"


def test_conversations_are_answered_as_alone(model: chaski.LLM) -> None:
    conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    together = model.chat_many(conversations, n=2, seed=1, **DRAW)
    alone = [model.chat(each, seed=seed, **DRAW) for each in conversations for seed in (1, 2)]
    assert [content(each) for each in together] == [content(each) for each in alone]


def test_progress(model: chaski.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    shares: list[float] = []
    model.generate_many(PROMPTS, num_predict=2, progress=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]
    model.generate_many(PROMPTS, num_predict=2, progress=True)
    assert capsys.readouterr().err == "", "no bar where nobody watches"


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None])
def test_what_is_no_number_of_answers_is_refused(model: chaski.LLM, n: Any) -> None:
    with pytest.raises(OptionError, match=r"option n is .* a whole number from 1 on"):
        model.generate_many(PROMPTS, n=n)


@pytest.mark.parametrize("prompts", ["the end", [1, 2, 3], None, {"role": "user", "content": "a"}])
def test_a_single_one_is_refused(model: chaski.LLM, prompts: Any) -> None:
    with pytest.raises(OptionError, match="must be a list of several"):
        model.generate_many(prompts)
    one: Any = [{"role": "user", "content": "a"}] if prompts is None else prompts
    with pytest.raises(OptionError, match="must be a list of several"):
        model.chat_many(one)


def test_one_that_does_not_fit_ends_all_before_anything_is_computed(model: chaski.LLM) -> None:
    with pytest.raises(ContextLengthError):
        model.generate_many(["a", "b " * 500])
    assert model.generate("a", num_predict=2).text, "and the model goes on"


def test_how_a_model_shows_itself(model: chaski.LLM, tmp_path: Path) -> None:
    assert repr(model) == "<LLM tiny.gguf: context 256, parallel 3, 0.00 GB>"
    with chaski.load("guide", threads=1, context=128) as guide:
        assert repr(guide).startswith("<LLM guide:latest: context 128, parallel 1, 0.0")
    assert repr(guide) == "<LLM guide:latest: closed>"
