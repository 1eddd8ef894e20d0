"""Keys and values in four and three bits: one answer alone, together, in chunks, restored and shifted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.runner.llm import LLM

GEMMA = Path(__file__).parents[2] / "data" / "architectures" / "gemma3.gguf"
"""A model with a window in some of its layers, and heads of 32 elements."""
PROMPTS = [[5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 5, 5, 2, 9, 9, 1, 4, 7] * 2, [5, 9, 2, 7, 1, 3], [8, 4] * 9]
ANSWER: dict[str, Any] = {"num_predict": 90, "temperature": 0, "ignore_eos": True, "logprobs": True}

types = pytest.mark.parametrize("kv_type", ["q4_0", "q3_0", "q3_0:q4_0", "i16:q4_0"])


def loaded(kv_type: str, **options: Any) -> LLM:
    return chaski.load(GEMMA, kv_type=kv_type, context=64, **{"threads": 1, "prompt_cache": False, **options})


def bits(answer: chaski.Answer) -> object:
    """Return everything that an answer consists of; it shifted its context."""
    assert answer.shifted_tokens > 0
    return answer.token_ids, [each.logprob for each in answer.logprobs], answer.shifted_tokens


@types
def test_alone_together_and_in_chunks(kv_type: str) -> None:
    alone = []
    for prompt in PROMPTS:
        with loaded(kv_type) as model:
            alone.append(bits(model.generate(prompt, **ANSWER)))
    for options in ({"parallel": 3}, {"parallel": 3, "num_batch": 7, "threads": 2}):
        with loaded(kv_type, **options) as model:
            assert [bits(answer) for answer in model.generate_many(PROMPTS, **ANSWER)] == alone


@types
def test_restored(kv_type: str) -> None:
    """The second answer continues the first prompt, after other prompts have taken its place."""
    longer = [*PROMPTS[0], 3, 1]
    with loaded(kv_type) as model:
        expected = bits(model.generate(longer, **ANSWER))
    with loaded(kv_type, prompt_cache="memory") as model:
        for prompt in PROMPTS:
            model.generate(prompt, **ANSWER)
        answer = model.generate(longer, **ANSWER)
        assert bits(answer) == expected


@pytest.mark.parametrize("kv_type", ["q4_0", "q3_0"])
def test_logits_are_near_those_of_i16(kv_type: str) -> None:
    """The rotation is taken back everywhere: other keys and values only round more."""
    found = []
    for each in ("i16", kv_type):
        with loaded(each) as model:
            found.append(model.logits(PROMPTS[0]))
    off = abs(found[1] - found[0])
    assert 0 < off.mean() < (0.15 if kv_type == "q4_0" else 0.3) * found[0].std()
