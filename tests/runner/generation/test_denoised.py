"""Answers of models that denoise: against the algorithm itself, alone and next to others, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.chat.events import Done, Text
from chaski.errors import ContextLengthError, OptionError, UnsupportedError
from chaski.runner.generation.denoised import Schedule
from chaski.sample.transforms import log_probabilities
from tests import families

MASK, LENGTH = 303, 20
PROMPTS = [
    families.expected("llada/usual")["prompt"].tolist()[begin : begin + 9 + begin] for begin in range(6)
]


def load(family: str, **options: Any) -> chaski.LLM:
    variant = f"{family}/usual"
    return chaski.load(
        families.converted(variant), **{"context": 128, "threads": 1, "parallel": 6, **options}
    )


@pytest.fixture(scope="module", params=families.DENOISING)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str) -> Iterator[chaski.LLM]:
    with load(family) as model:
        yield model


def denoised(model: chaski.LLM, prompt: list[int], is_shifted: bool, block: int, steps: int) -> list[int]:
    """Return the most probable answer of LENGTH tokens: in each step of a block the surest tokens stay."""
    tokens = [*prompt, *[MASK] * LENGTH]
    for begin in range(len(prompt), len(tokens), block):
        places = range(begin, min(begin + block, len(tokens)))
        num_steps = -(-steps * len(places) // LENGTH)
        for step in range(num_steps):
            logits = np.asarray(model.logits(tokens))
            found = []
            for place in places:
                if tokens[place] == MASK:
                    row = logits[place - is_shifted].copy()
                    token = int(np.where(np.arange(len(row)) == MASK, -np.inf, row).argmax())
                    found.append((-log_probabilities(row, np.array([token]))[0], place, token))
            for _, place, token in sorted(found)[: -(-len(found) // (num_steps - step))]:
                tokens[place] = token
    return tokens[len(prompt) :]


@pytest.mark.parametrize(("block", "steps"), [(32, LENGTH), (8, 10), (7, 3)])
def test_the_surest_tokens_of_a_block_stay(model: chaski.LLM, family: str, block: int, steps: int) -> None:
    is_shifted = family in ("dream", "rnd1")
    for prompt in PROMPTS[:2]:
        wanted = denoised(model, prompt, is_shifted, block, steps)
        options = {"denoising_block": block, "denoising_steps": steps, "temperature": 0, "ignore_eos": True}
        found = model.generate(prompt, num_predict=LENGTH, **options)
        assert list(found.token_ids) == wanted
        assert (found.done.generated_tokens, found.done_reason) == (LENGTH, "length")


def test_answers_are_the_same_alone_and_next_to_others(model: chaski.LLM, family: str) -> None:
    options: dict[str, Any] = {"num_predict": LENGTH, "seed": 3, "temperature": 0.9, "denoising_block": 6}
    together = model.generate_many(PROMPTS, **options)
    alone = [model.generate(prompt, **options) for prompt in PROMPTS]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    with load(family, threads=2, parallel=1, prompt_cache=False) as other:
        assert other.generate(PROMPTS[2], **options).token_ids == alone[2].token_ids
    assert model.generate(PROMPTS[2], **{**options, "seed": 4}).token_ids != alone[2].token_ids


def test_logits_do_not_depend_on_threads(model: chaski.LLM, family: str) -> None:
    ids = families.expected(f"{family}/usual")["prompt"].tolist()
    with load(family, threads=2, parallel=1) as other:
        np.testing.assert_array_equal(other.logits(ids), model.logits(ids))


def test_no_answer_has_masks(model: chaski.LLM) -> None:
    answer = model.generate(PROMPTS[0], num_predict=64, temperature=5.0, seed=1, ignore_eos=True)
    assert len(answer.token_ids) == 64
    assert MASK not in answer.token_ids


@pytest.fixture(scope="module")
def llada() -> Iterator[chaski.LLM]:
    with load("llada") as model:
        yield model


GREEDY: dict[str, Any] = {"num_predict": 24, "temperature": 0, "denoising_block": 8, "ignore_eos": True}


def test_text_comes_block_by_block_and_ends_at_tokens_and_texts(llada: chaski.LLM) -> None:
    *pieces, done = llada.stream(PROMPTS[0], **GREEDY)
    assert isinstance(done, Done)
    ids = [token for piece in pieces if isinstance(piece, Text) for token in piece.token_ids]
    whole = llada.generate(PROMPTS[0], **GREEDY)
    assert ids == list(whole.token_ids)
    end = next(token for token in ids[3:] if token not in ids[:3])
    stopped = llada.generate(PROMPTS[0], **GREEDY, stop_token_ids=[end])
    assert list(stopped.token_ids) == ids[: ids.index(end)]
    assert (stopped.done_reason, stopped.done.generated_tokens) == ("stop", ids.index(end) + 1)
    stop = whole.text[5:7]
    cut = llada.generate(PROMPTS[0], **GREEDY, stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.done.stop_string == stop


def test_an_answer_has_a_length_before_it_begins(llada: chaski.LLM) -> None:
    answer = llada.generate(PROMPTS[0], temperature=0, denoising_steps=4, ignore_eos=True)
    assert len(answer.token_ids) == 128 - len(PROMPTS[0])  # what the context has room for
    assert answer.done_reason == "length"
    with pytest.raises(ContextLengthError, match="needs room for the answer"):
        llada.generate([5] * 128, temperature=0)


def test_a_conversation_is_answered(llada: chaski.LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    answers = [llada.chat(messages, num_predict=12, seed=7) for _ in range(2)]
    assert answers[0].text == answers[1].text != ""


def test_steps_of_a_block() -> None:
    assert [Schedule(20, 8, 10).steps_of(size) for size in (8, 8, 4)] == [4, 4, 2]
    assert Schedule(20, 8, 1).steps_of(8) == 1
    assert Schedule(20, 20, 500).steps_of(20) == 20


@pytest.mark.parametrize(
    "options",
    [
        {"format": "json"},
        {"regex": "a+"},
        {"choice": ["a", "b"]},
        {"logprobs": True},
        {"prompt_logprobs": 0},
        {"num_beams": 2},
        {"min_tokens": 2},
        {"bad_words": ["a"]},
        {"num_predict": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_need_token_by_token_are_refused(llada: chaski.LLM, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"option {next(iter(options))} "):
        llada.generate(PROMPTS[0], **options)


def test_a_block_larger_than_the_outputs_of_a_batch_is_refused(llada: chaski.LLM) -> None:
    with pytest.raises(OptionError, match="100 outputs are needed at once"):
        llada.generate(PROMPTS[0], num_predict=100, denoising_block=100)


def test_parts_that_work_token_by_token_are_refused(llada: chaski.LLM, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="embeddings"):
        llada.embed("a")
    with pytest.raises(UnsupportedError, match="denoises"):
        llada.prompts.streamed([5] * 20, range(10, 20))
    with pytest.raises(UnsupportedError, match="prefix cache"):
        llada.save_state(tmp_path / "state", PROMPTS[0])
    path = families.converted("llada/usual")
    with pytest.raises(UnsupportedError, match="denoises"):
        chaski.load(path, draft=path)
