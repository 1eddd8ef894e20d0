"""An answer whose beginning is known is computed again in few batches, and is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import chaski
from chaski.chat.events import Done, Text
from chaski.chat.requests import Generate
from chaski.formats.quant import QuantType
from tests.tiny_llama import write_tiny_llama

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": 3, "top_k": 0, "repeat_penalty": 1.3, "logprobs": True, "top_logprobs": 2},
    {"temperature": 1.0, "seed": 5, "draft_num_predict": 0},
    {"temperature": 1.0, "seed": 8, "stop": ["e"]},
    {"temperature": 0.9, "seed": 8, "format": {"type": "array", "items": {"type": "integer"}}},
    {"temperature": 1.0, "seed": 5, "num_predict": 600, "ignore_eos": True},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chaski.LLM]:
    path = write_tiny_llama(
        tmp_path_factory.mktemp("models") / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=256
    )
    with chaski.load(path, threads=1) as loaded:
        yield loaded


def answer(model: chaski.LLM, call: Generate) -> tuple[list[Text], Done]:
    async def events() -> list[Any]:
        return [event async for event in model.asynchronous().events(call)]

    *pieces, done = asyncio.run(events())
    assert isinstance(done, Done)
    return pieces, done


def content(pieces: list[Text]) -> tuple[str, list[int], list[Any]]:
    ids = [token for piece in pieces for token in piece.token_ids]
    return "".join(piece.text for piece in pieces), ids, [p for piece in pieces for p in piece.logprobs]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_answer_is_the_same_whatever_is_known_of_it(model: chaski.LLM, options: dict[str, Any]) -> None:
    call = Generate("once upon a", {"num_predict": 48, **options})
    pieces, done = answer(model, call)
    text, ids, scores = content(pieces)
    for known in {0, 1, len(ids) // 2, len(ids) - 1, len(ids)} - {-1}:
        again, end = answer(model, replace(call, written=tuple(ids[:known])))
        assert content(again) == (text, ids, scores)
        assert (end.reason, end.stop_string, end.generated_tokens, end.shifted_tokens) == (
            done.reason,
            done.stop_string,
            done.generated_tokens,
            done.shifted_tokens,
        )


def test_tokens_that_are_not_those_of_the_answer_change_nothing(model: chaski.LLM) -> None:
    call = Generate("once upon a", {"num_predict": 40, "temperature": 1.0, "seed": 5})
    pieces, _ = answer(model, call)
    ids = content(pieces)[1]
    wrong = [*ids[:9], ids[9] ^ 1, *ids[10:30]]
    again, done = answer(model, replace(call, written=tuple(wrong)))
    assert content(again) == content(pieces)
    assert done.accepted_tokens < done.proposed_tokens


def test_known_tokens_are_computed_several_at_a_time(model: chaski.LLM) -> None:
    call = Generate("once upon a", {"num_predict": 65, "temperature": 1.0, "seed": 5, "draft_num_predict": 0})
    pieces, _ = answer(model, call)
    ids = content(pieces)[1]
    _, done = answer(model, replace(call, written=tuple(ids[:60])))
    assert 50 < done.proposed_tokens == done.accepted_tokens < 60


def test_a_usual_seed_is_that_of_requests_and_models_that_name_none(model: chaski.LLM) -> None:
    named = answer(model, Generate("0", {"temperature": 1.0, "seed": 7, "num_predict": 20}))[0]
    usual = answer(model, Generate("0", {"temperature": 1.0, "num_predict": 20}, usual_seed=7))[0]
    both = Generate("0", {"temperature": 1.0, "seed": 7, "num_predict": 20}, usual_seed=8)
    assert content(usual) == content(named) == content(answer(model, both)[0])
