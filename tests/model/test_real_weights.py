"""Two real models against llama.cpp: greedy tokens, and the perplexity of a text in every type.

They need xllamacpp and the user's package index, so they are run by hand.

Both engines round activations to eight bits before they multiply them by quantized weights, in different
ways: llama.cpp with a half-precision scale for each 32 of them, or 256 for K types, and chaski by its own
rule. This moves each logit by about 0.1 away from exact arithmetic, so the two may choose different tokens
where two tokens are nearly as likely. With F32 weights nothing is rounded, and the tokens are equal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.runner.evaluation.chunks import Chunks
from tests.llama_cpp_logits import surprisals
from tests.real_weights import fetch_gemma3, fetch_smollm2
from tools.measure_types import TEXT, TYPES, write_exact, write_mixture

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def add(a, b):",
    "Water boils at",
    "The llama is an animal that",
    "In 1969, people",
    "A recipe for bread:",
    "Dear Sir,",
    "1, 2, 3, 4,",
    "The meaning of life is",
]
COUNT = 64
CONTEXT = 512
# In exact arithmetic, two tokens that the engines choose differently are this near.
NEAR = 0.6
FETCHED: dict[str, Callable[[Path], Path]] = {"smollm2": fetch_smollm2, "gemma3": fetch_gemma3}


@pytest.fixture(scope="module", params=FETCHED)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FETCHED[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def exact(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the same weights in F32."""
    path = tmp_path_factory.mktemp("exact") / "exact.gguf"
    write_exact(model, path)
    yield path
    path.unlink()


def llama_cpp(path: Path, **asked: Any) -> Any:
    command = [sys.executable, "-m", "tests.llama_cpp_logits", str(path)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@contextmanager
def loaded(path: Path, kv_type: str | None = None) -> Iterator[chaski.LLM]:
    with chaski.load(path, context=CONTEXT, kv_type=kv_type, prompt_cache=False, threads=2) as model:
        yield model


def greedy(model: chaski.LLM, prompt: list[int]) -> list[int]:
    answer = model.generate(prompt, temperature=0, num_predict=COUNT)
    return list(answer.token_ids)


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    return next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)


def test_greedy_tokens_of_unrounded_weights(exact: Path) -> None:
    with loaded(exact, "f32") as model:
        prompts = [model.tokenize(prompt) for prompt in PROMPTS]
        ours = [greedy(model, prompt) for prompt in prompts]
    for tokens, found in zip(ours, llama_cpp(exact, greedy=prompts, count=COUNT), strict=True):
        assert tokens == [token for token, _ in found][: len(tokens)]


def test_greedy_tokens_differ_only_where_two_are_nearly_as_likely(model: Path, exact: Path) -> None:
    with loaded(model) as quantized:
        prompts = [quantized.tokenize(prompt) for prompt in PROMPTS]
        ours = [greedy(quantized, prompt) for prompt in prompts]
    theirs = [[token for token, _ in found] for found in llama_cpp(model, greedy=prompts, count=COUNT)]
    num_equal = 0
    with loaded(exact, "f32") as reference:
        for prompt, own, other in zip(prompts, ours, theirs, strict=True):
            place = first_difference(own, other)
            if place is None:
                num_equal += 1
                continue
            row = reference.logits([*prompt, *own[:place]])[-1]
            assert row.max() - min(row[own[place]], row[other[place]]) < NEAR
    assert num_equal >= 2


def test_logits_are_no_further_from_exact_than_those_of_llama_cpp(model: Path, exact: Path) -> None:
    with loaded(model) as quantized:
        chunks = Chunks.of(TEXT.read_text(), quantized.tokenizer, CONTEXT)
        ids = chunks[1][:200]
        ours = quantized.logits(ids)
    with loaded(exact, "f32") as reference:
        wanted = reference.logits(ids)
    theirs = np.array(llama_cpp(model, logits=ids), np.float32)

    def error(logits: np.ndarray) -> float:
        differences = logits.astype(np.float64) - wanted
        return float((differences - differences.mean(axis=1, keepdims=True)).std())

    assert error(ours) < 1.02 * error(theirs)


@pytest.mark.parametrize("type", ["as published", *TYPES])
def test_perplexity_is_that_of_llama_cpp(model: Path, exact: Path, type: str, tmp_path: Path) -> None:
    path = model if type == "as published" else write_mixture(exact, tmp_path, type)
    with loaded(path) as found:
        chunks = Chunks.of(TEXT.read_text(), found.tokenizer, CONTEXT)
        pieces, first = [chunks[index] for index in range(len(chunks))], chunks.num_unscored
        ours = [surprisals(found.logits(ids[:-1])[first - 1 :], ids[first:]) for ids in pieces]
    theirs = llama_cpp(path, scored=pieces, first=first)
    ratio = np.exp(np.mean(ours) - np.mean(theirs))
    assert ratio == pytest.approx(1, abs=0.005)
