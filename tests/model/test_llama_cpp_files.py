"""The tiny models of families against llama.cpp on the same files; needs xllamacpp, so run it by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.runner.channels.worker.client import Worker

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

DATA = Path(__file__).parents[1] / "data"
TEXTS = ["the other end in the", "a 123 th (an) on the inner t", "x"]
# Its keys and values are in half precision.
NEAR = 0.1


@pytest.mark.parametrize("name", ["gemma", "gemma4", "gemma4-moe", "gemma4-small"])
def test_the_most_likely_tokens_are_those_of_llama_cpp(name: str) -> None:
    path = DATA / "architectures" / f"{name}.gguf"
    options = {"temperature": 0, "num_predict": 24, "logprobs": True, "top_logprobs": 20}
    with Worker(path, engine="llama.cpp", threads=1) as worker:
        answers = [worker.generate(text, **options) for text in TEXTS]
    with chaski.load(path, kv_type="f32") as model:
        for text, answer in zip(TEXTS, answers, strict=True):
            prompt = model.tokenize(text)
            logits = np.asarray(model.logits([*prompt, *answer.token_ids]), np.float64)[len(prompt) - 1 : -1]
            logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            for row, token in zip(logprobs, answer.logprobs, strict=True):
                found = {top.token_id: top.logprob for top in token.top_logprobs}
                assert len(found) == 20
                assert max(abs(row[index] - value) for index, value in found.items()) < NEAR


@pytest.mark.parametrize("name", ["gemma-embedding"])
def test_embeddings_are_those_of_llama_cpp(name: str) -> None:
    path = DATA / "embedders" / f"{name}.gguf"
    with Worker(path, engine="llama.cpp", threads=1) as worker:
        wanted = np.asarray(worker.embed(TEXTS))
    with chaski.load(path) as model:
        found = np.asarray(model.embed(TEXTS))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)
