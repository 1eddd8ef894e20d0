"""Llama 3.2 Vision in the engine: texts with images from users."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from tests.mllama.prompts import TEXTS
from tests.mllama.test_mllama import DATA, expected, png
from tests.vision_oracle import BACKENDS, answers_at_once, quantized, said

GREEDY: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 8}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("mllama") / "mllama.gguf"
    convert(DATA, target, "F32")
    return target


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[chaski.LLM]:
    with chaski.load(path, context=64, num_batch=12) as loaded:
        yield loaded


def fresh(path: Path, text: str, *names: str) -> chaski.Answer:
    with chaski.load(path, context=64, threads=1) as alone:
        return alone.generate(text, [png(name) for name in names], **GREEDY)


def same(a: chaski.Answer, b: chaski.Answer) -> bool:
    return (a.token_ids, a.logprobs) == (b.token_ids, b.logprobs)


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("name", TEXTS)
def test_logits_equal_those_of_transformers(name: str, backend: str, tolerance: float, path: Path) -> None:
    text, pictures = TEXTS[name]
    with chaski.load(path, context=64, backend=backend) as loaded:
        found = loaded.logits(text, [png(picture) for picture in pictures])
    np.testing.assert_allclose(found, expected()[f"{name}.logits"], rtol=0, atol=tolerance)


def test_the_prefix_cache_changes_nothing(path: Path, model: chaski.LLM) -> None:
    text = "The runner[img-0] carries the message[img-1] over"
    first = model.generate(text, [png("wide"), png("high")], **GREEDY)
    again = model.generate(text, [png("wide"), png("high")], **GREEDY)
    assert again.evaluated_tokens == 1
    other = model.generate(text, [png("wide"), png("small")], **GREEDY)
    # Rows of the first image are gone by then, so later tokens cannot be reused.
    assert other.cached_tokens == len(model.tokenize("The runner"))
    shorter = model.generate("The runner[img-0] carries", [png("wide")], **GREEDY)
    silent = model.generate("The runner carries", **GREEDY)
    assert same(first, again)
    assert same(first, fresh(path, text, "wide", "high"))
    assert same(other, fresh(path, text, "wide", "small"))
    assert same(shorter, fresh(path, "The runner[img-0] carries", "wide"))
    assert same(silent, fresh(path, "The runner carries"))
    assert len({answer.token_ids for answer in (first, other, shorter, silent)}) > 1


def test_a_full_context_may_lose_the_image(path: Path, model: chaski.LLM) -> None:
    answer = model.generate("The[img-0] runner", [png("high")], **{**GREEDY, "num_predict": 150})
    assert len(answer.token_ids) == 150


def test_an_image_alone_is_a_prompt(path: Path, model: chaski.LLM) -> None:
    assert same(model.generate("", [png("large")], **GREEDY), fresh(path, "[img-0]", "large"))


QUESTIONS = [
    ("The runner[img-0] carries the message[img-1] over", ["wide", "high"]),
    ("The runner carries the message.", []),
    ("[img-0]the mountains", ["small"]),
    ("The runner[img-0] carries the message over", ["wide"]),
]


def prompts() -> list[tuple[str, list[bytes]]]:
    return [(text, [png(name) for name in names]) for text, names in QUESTIONS]


@pytest.mark.parametrize("kind", [None, "Q4_0"])
def test_sequences_with_images_are_as_alone(kind: str | None, path: Path, tmp_path: Path) -> None:
    """All begin in the same batch, whose size of 16 cuts most of them; later they continue from the cache."""
    source = path if kind is None else quantized(path, tmp_path / "quantized.gguf", kind)
    with chaski.load(source, context=64, threads=1, prompt_cache=False) as model:
        alone = [said(model.generate(*prompt, **GREEDY)) for prompt in prompts()]
    assert len({tokens for tokens, _ in alone}) == len(alone)
    with chaski.load(source, context=64, parallel=4, num_batch=16) as model:
        for _ in range(2):
            assert answers_at_once(model, prompts(), **GREEDY) == alone


def test_sequences_that_begin_alike_share_what_they_have_seen(path: Path) -> None:
    one = [png("wide")]
    ends = [" carries the message", " the load", " over 0 1 12"]
    texts = [f"The runner[img-0]{end}" for end in ends]
    alone = [said(fresh(path, text, "wide")) for text in texts]
    with chaski.load(path, context=64, parallel=3, num_batch=16) as model:
        first = model.generate(texts[0], one, **GREEDY)
        assert said(first) == alone[0]
        assert answers_at_once(model, [(text, one) for text in texts], **GREEDY) == alone
        again = model.generate(texts[1], one, **GREEDY)
        assert again.evaluated_tokens == 1
        # Another image replaces the shared one in one of the sequences.
        model.generate("The runner[img-0] carries[img-1] it", [*one, png("high")], **GREEDY)
        assert answers_at_once(model, [(text, one) for text in texts], **GREEDY) == alone


def test_full_contexts_beside_each_other(path: Path) -> None:
    """One sequence loses its image while others keep theirs."""
    longer = {**GREEDY, "num_predict": 70, "num_keep": 1}
    with chaski.load(path, context=64, threads=1, prompt_cache=False) as model:
        alone = [said(model.generate(*prompt, **longer)) for prompt in prompts()]
    with chaski.load(path, context=64, parallel=4) as model:
        assert answers_at_once(model, prompts(), **longer) == alone
