"""Log-probabilities of a prompt equal those of the logits, and of an answer with the same text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.errors import ChaskiError, OptionError
from chaski.runner.channels.worker.client import Worker
from chaski.runner.generation.prompt_scores import PromptScorer
from chaski.runner.llm import LLM
from chaski.sample import scored
from tests.tiny_llama import write_tiny_llama

PROMPT = [(7 * position + position // 5) % 250 + 3 for position in range(45)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("scores") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LLM]:
    with chaski.load(path, threads=1, parallel=3, context=128) as found:
        yield found


@pytest.mark.parametrize("num_top", [0, 3])
@pytest.mark.parametrize("num_predict", [0, 5])
def test_they_are_those_of_the_logits(model: LLM, num_top: int, num_predict: int) -> None:
    logits = model.logits(PROMPT)
    expected = [scored(row, token, num_top) for row, token in zip(logits, PROMPT[1:], strict=False)]
    model.generate(PROMPT, num_predict=1)  # so that all of it could be reused
    answer = model.generate(PROMPT, temperature=0, prompt_logprobs=num_top, num_predict=num_predict)
    assert list(answer.prompt_logprobs) == expected
    assert answer.cached_tokens == 0
    plain = model.generate(PROMPT, temperature=0, num_predict=num_predict)
    assert answer.token_ids == plain.token_ids
    assert plain.prompt_logprobs == ()


def test_they_are_those_of_an_answer_that_says_the_same(model: LLM) -> None:
    said = model.generate(PROMPT[:9], temperature=0, num_predict=20, logprobs=True, top_logprobs=2, stop=[])
    again = model.generate([*PROMPT[:9], *said.token_ids], num_predict=0, prompt_logprobs=2)
    assert again.prompt_logprobs[8:] == said.logprobs


def test_beside_others_they_are_the_same(model: LLM) -> None:
    """They run with answers and with each other, in a batch with too few outputs for all at once."""
    prompts = [PROMPT, PROMPT[5:], PROMPT[20:] + PROMPT[:20], PROMPT[:1]]
    alone = [model.generate(prompt, num_predict=0, prompt_logprobs=1).prompt_logprobs for prompt in prompts]
    assert alone[3] == ()

    async def together() -> list[chaski.Answer]:
        ways = model.asynchronous()
        asked = [ways.generate(prompt, temperature=0, num_predict=3, prompt_logprobs=1) for prompt in prompts]
        plain = [ways.generate(prompt, temperature=0, num_predict=30) for prompt in prompts]
        return await asyncio.gather(*asked, *plain)

    answers = asyncio.run(together())
    assert [answer.prompt_logprobs for answer in answers[:4]] == alone
    assert all(answer.prompt_logprobs == () for answer in answers[4:])


def test_a_worker_tells_them_too(path: Path, model: LLM) -> None:
    expected = model.generate(PROMPT, num_predict=2, temperature=0, prompt_logprobs=2)
    with Worker(path, threads=1, context=128) as worker:
        answer = worker.generate(PROMPT, num_predict=2, temperature=0, prompt_logprobs=2)
    assert (answer.prompt_logprobs, answer.token_ids) == (expected.prompt_logprobs, expected.token_ids)


def test_a_context_that_shifts_tells_them_once(model: LLM) -> None:
    answer = model.generate(PROMPT, num_predict=200, temperature=0, prompt_logprobs=0, logit_bias={257: -100})
    assert answer.shifted_tokens
    assert len(answer.prompt_logprobs) == len(PROMPT) - 1


@pytest.mark.parametrize("value", [-1, 21, True, "1", 1.0])
def test_what_is_no_count_is_refused(model: LLM, value: object) -> None:
    with pytest.raises(OptionError, match="option prompt_logprobs is"):
        model.generate(PROMPT, prompt_logprobs=value)


def test_outputs_that_come_twice_count_once_and_missing_ones_are_an_error() -> None:
    rows = np.random.default_rng(1).normal(size=(9, 20)).astype(np.float32)
    prompt = list(range(10))
    scorer = PromptScorer(prompt, 1)
    assert scorer.take(0, rows[:4]) == 4
    assert scorer.event() is None
    assert scorer.take(2, rows[2:6]) == 4
    with pytest.raises(ChaskiError, match="was interrupted"):
        scorer.take(7, rows[7:])
    assert scorer.take(6, np.concatenate([rows[6:], rows[:1]])) == 3
    event = scorer.event()
    assert event is not None
    assert list(event.logprobs) == [
        scored(row, token, 1) for row, token in zip(rows, prompt[1:], strict=True)
    ]
    assert scorer.event() is None
