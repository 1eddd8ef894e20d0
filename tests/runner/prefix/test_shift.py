"""Full contexts give the answer of the request alone, whatever cells are shared or trimmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chaski
from tests.cache_checks import assert_whole
from tests.random_mixes import MODELS
from tests.tiers import long_after
from tests.tiny_vision import image
from tests.vision_oracle import answers_at_once, said

DATA = Path(__file__).parents[2] / "data"
SAMPLED: dict[str, Any] = {"temperature": 1.0, "logprobs": True, "num_predict": 60}
PROMPT = [int(token) for token in range(5, 45)]


def path_of(name: str, folder: Path) -> Path | str:
    return next(model for model in MODELS if model.name == name).path(folder)


def alone(path: Path | str, prompt: list[int], **options: Any) -> chaski.Answer:
    with chaski.load(path, context=64, parallel=1, prompt_cache=False) as model:
        return model.generate(prompt, **SAMPLED, **options)


@pytest.mark.parametrize("name", long_after(2, ["llama", "gemma3", "qwen3", "gpt-oss", "llama4", "lfm2"]))
def test_requests_that_share_a_prompt_shift_as_alone(name: str, tmp_path: Path) -> None:
    path = path_of(name, tmp_path)
    answers = {seed: alone(path, PROMPT, seed=seed) for seed in range(8)}
    seeds = [seed for seed, answer in answers.items() if answer.shifted_tokens][:2]
    expected = [answers[seed] for seed in seeds]
    with chaski.load(path, context=64, parallel=2) as model:
        first = model.generate(PROMPT, **SAMPLED, seed=seeds[1])
        streams = [model.stream(PROMPT, **SAMPLED, seed=seed) for seed in seeds]
        events = [[next(stream)] for stream in streams]
        for stream, of_stream in zip(streams, events, strict=True):
            of_stream += stream
        assert_whole(model.engine)
    assert said(first) == said(expected[1])
    for of_stream, answer in zip(events, expected, strict=True):
        *texts, done = of_stream
        assert isinstance(done, chaski.Done)
        assert done.shifted_tokens == answer.shifted_tokens
        assert tuple(token for text in texts for token in text.token_ids) == answer.token_ids
        assert tuple(entry for text in texts for entry in text.logprobs) == answer.logprobs


@pytest.mark.parametrize("num_keep", [40, 50, 56])
@pytest.mark.parametrize("num_batch", [4, 512])
def test_a_shift_does_not_depend_on_what_was_trimmed(num_keep: int, num_batch: int) -> None:
    """The tokens after the cut are fewer than the window, or equal to it."""
    path = DATA / "architectures" / "gemma3.gguf"
    expected = alone(path, PROMPT, seed=3, num_keep=num_keep)
    with chaski.load(path, context=64, parallel=3, num_batch=num_batch) as model:
        others = [model.stream([token] * 9, **SAMPLED, seed=token) for token in (7, 9)]
        for other in others:
            next(other)
        assert said(model.generate(PROMPT, **SAMPLED, seed=3, num_keep=num_keep)) == said(expected)
        for other in others:
            other.close()


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "llama4", "lfm2", "mllama"])
def test_a_prompt_that_is_kept_whole_and_fills_the_context(name: str, tmp_path: Path) -> None:
    path = path_of(name, tmp_path)
    prompt = [3] * 64
    expected = alone(path, prompt, seed=1, num_keep=64)
    assert expected.shifted_tokens or expected.done_reason == "stop"
    with chaski.load(path, context=64, parallel=2) as model:
        other = model.stream([4] * 9, **SAMPLED, ignore_eos=True)
        next(other)
        assert said(model.generate(prompt, **SAMPLED, seed=1, num_keep=64)) == said(expected)
        assert list(other)
        assert_whole(model.engine)


def test_a_prompt_like_what_two_shifts_left_is_computed() -> None:
    """The first cut is before an image, the second one after its former place."""
    path = DATA / "vision" / "gemma3.gguf"
    prompt, seen = "the[img-0]load carries mountains over and over", [image("gemma3", 0)]
    long = {**SAMPLED, "num_keep": 12, "num_predict": 90, "seed": 4}
    with chaski.load(path, context=48, parallel=2) as model:
        stream = model.stream(prompt, seen, **long)
        next(stream)
        sequence = model.engine._sequences.running[0]
        list(stream)
        assert sequence.slot.shifted_at is not None
        assert sequence.slot.shifted_at < 12
        again = sequence.tokens[:30]
        found = model.generate(again, **SAMPLED, seed=1)
    with chaski.load(path, context=48) as fresh:
        assert said(found) == said(fresh.generate(again, **SAMPLED, seed=1))


def test_images_that_are_forgotten_beside_prompts_like_them() -> None:
    path = DATA / "vision" / "gemma3.gguf"
    prompts = [("the[img-0]load[img-1]x", [image("gemma3", 0), image("gemma3", index)]) for index in (1, 2)]
    long = {**SAMPLED, "num_keep": 4, "num_predict": 70, "seed": 9}
    expected = []
    for prompt in prompts:
        with chaski.load(path, context=48, prompt_cache=False) as model:
            expected.append(said(model.generate(*prompt, **long)))
    with chaski.load(path, context=48, parallel=2, num_batch=12) as model:
        assert answers_at_once(model, prompts, **long) == expected
