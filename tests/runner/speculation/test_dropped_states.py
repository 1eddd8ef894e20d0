"""Recurrent layers drop rejected tokens: proposals change when tokens arrive, but never the tokens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.kvcache import Recurrent
from chaski.model.registry import build_model
from chaski.runner.speculation.ngram import NgramSpeculator
from tests.families import FIRST, converted

PROMPTS = [np.random.default_rng(seed).integers(5, 290, count).tolist() for seed, count in ((1, 40), (2, 9))]
OPTIONS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}]
SETTINGS: dict[str, Any] = {"num_predict": 50, "ignore_eos": True, "logprobs": True}


def passes_states(variant: str) -> bool:
    """Return whether a family's layers pass a state from token to token."""
    with open_gguf(converted(variant)) as file:
        kinds = build_model(file).layer_kinds()
    return any(isinstance(kind, Recurrent) and not kind.ring for kind in kinds)


NAMES = (
    *("arwkv7", "bailingmoe3", "glm5_next", "jamba", "kimi_k3", "kimi_linear", "lfm2moe", "mamba"),
    *("rwkv6", "rwkv6qwen2", "rwkv7"),
)
RECURRENT = [variant for variant in FIRST if variant.partition("/")[0] in NAMES]


_SHORT = ("kimi_linear", "lfm2moe", "mamba")


@pytest.mark.parametrize(
    "variant",
    [
        variant if variant.startswith(_SHORT) else pytest.param(variant, marks=pytest.mark.long)
        for variant in RECURRENT
    ],
)
def test_answers_are_the_same_with_right_and_wrong_proposals(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert passes_states(variant)
    with chaski.load(converted(variant), context=128, parallel=2, num_batch=16, threads=2) as model:

        def answer(index: int, most: int) -> Any:
            return model.generate(PROMPTS[index], **SETTINGS, **OPTIONS[index], draft_num_predict=most)

        plain = [answer(index, 0) for index in range(2)]
        texts = [[*prompt, *each.token_ids] for prompt, each in zip(PROMPTS, plain, strict=True)]
        random = np.random.default_rng(5)

        def proposed(self: NgramSpeculator) -> list[int]:
            held = self._tokens
            (text,) = (each for each in texts if each[: len(held)] == held)
            tokens = text[len(held) : len(held) + int(random.integers(self._requested + 1))]
            if tokens and random.random() < 0.7:
                tokens[int(random.integers(len(tokens)))] ^= 1
            return tokens

        monkeypatch.setattr(NgramSpeculator, "propose", proposed)
        with ThreadPoolExecutor(2) as pool:
            drafted = list(pool.map(lambda index: answer(index, 7), range(2)))
    for found, wanted in zip(drafted, plain, strict=True):
        assert found.token_ids == wanted.token_ids
        assert found.logprobs == wanted.logprobs
        assert 0 < found.done.accepted_tokens < found.done.proposed_tokens


def test_a_model_with_states_is_a_draft() -> None:
    path = converted("kimi_linear/usual")
    options: dict[str, Any] = {"num_predict": 40, "temperature": 0, "ignore_eos": True}
    with chaski.load(path, context=128, threads=1, draft=path) as model:
        plain = model.generate(PROMPTS[0], **options, draft_num_predict=0)
        drafted = model.generate(PROMPTS[0], **options)
    assert drafted.token_ids == plain.token_ids
    assert 0 < drafted.done.accepted_tokens == drafted.done.proposed_tokens
