"""One answer for one prompt and seed, whatever runs at the same time; texts are compared exactly."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.formats.quant import QuantType
from tests.tiers import long_after
from tests.tiny_llama import write_tiny_llama

SYSTEM = "You are chaski's guide. " * 3
QUESTIONS = [
    "how do I use fewer cores?",
    "what is a context",
    "Wie installiere ich es?",
    "tell me everything about the prompt cache, please, and about the key/value cache: " * 4,
    "x",
    "how do I stop an answer?",
    "how do I use fewer threads?",
    "write a poem about llamas " * 10,
]


OTHERS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.1, "min_tokens": 5},
    {"dry_multiplier": 0.8, "xtc_probability": 0.3, "xtc_threshold": 0.02},
    {"top_n_sigma": 2.0, "bad_words": ["e", "th"]},
    {"stop_token_ids": [80, 81], "include_stop_str_in_output": True, "ignore_eos": True},
]


def options(index: int) -> dict[str, Any]:
    """Return options: every request has its own seed and its own sampling."""
    return {
        "seed": index,
        "num_predict": 24 + 3 * index,
        "temperature": (0, 0.8, 1.5, 1.0)[index % 4],
        "top_k": (40, 0, 5)[index % 3],
        "top_p": (0.9, 1.0)[index % 2],
        "repeat_penalty": (1.0, 1.2)[index % 2],
        "stop": [["the", "qz"], []][index % 2],
        "logprobs": index % 3 == 0,
        **OTHERS[index % len(OTHERS)],
    }


def prompt(index: int) -> str:
    return SYSTEM + QUESTIONS[index]


@pytest.fixture(scope="module", params=["F32", "Q8_0", "Q4_0"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_llama(
        folder / "tiny.gguf", matrices=QuantType[request.param], llama__context_length=512
    )


@pytest.fixture(scope="module")
def expected(path: Path) -> list[chaski.Answer]:
    """Return the answer of each request alone, on a fresh model."""
    answers = []
    for index in range(len(QUESTIONS)):
        with chaski.load(path, threads=1, prompt_cache=False) as model:
            answers.append(model.generate(prompt(index), **options(index)))
    assert sum(len(answer.token_ids) for answer in answers) > 150
    return answers


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("num_batch", long_after(1, [32, 512]))
@pytest.mark.parametrize("prompt_cache", [True, False])
def test_eight_requests_together(
    path: Path, expected: list[chaski.Answer], prompt_cache: bool, num_batch: int, threads: int
) -> None:
    with chaski.load(
        path, threads=threads, parallel=8, num_batch=num_batch, prompt_cache=prompt_cache
    ) as model:
        for _ in range(2):  # the second time all prompts are cached
            answers: dict[int, chaski.Answer] = {}

            def ask(index: int, answers: dict[int, chaski.Answer] = answers) -> None:
                answers[index] = model.generate(prompt(index), **options(index))

            readers = [threading.Thread(target=ask, args=(index,)) for index in range(len(QUESTIONS))]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(timeout=60)
            for index, alone in enumerate(expected):
                together = answers[index]
                assert together.text == alone.text
                assert together.token_ids == alone.token_ids
                assert together.logprobs == alone.logprobs
                assert together.done_reason == alone.done_reason
        for answer in answers.values():
            assert (answer.cached_tokens >= len(model.tokenize(SYSTEM))) == prompt_cache
