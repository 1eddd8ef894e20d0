from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.formats.quant import QuantType
from chaski.runner.speculation.ngram import NgramSpeculator
from tests.tiny_llama import write_tiny_llama


def proposed(speculator: NgramSpeculator, most: int) -> list[int]:
    speculator.request(most, 0)
    return speculator.propose()


def test_the_tokens_that_followed_last_time_are_proposed() -> None:
    speculator = NgramSpeculator([1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 7, 8, 2, 3, 4], 8)
    assert proposed(speculator, 8) == [6, 7, 8]
    assert proposed(speculator, 2) == [6, 7]
    assert proposed(speculator, 0) == []
    speculator.extend([6])
    assert proposed(speculator, 8) == [7, 8, 2]


def test_nothing_is_proposed_where_nothing_was_seen() -> None:
    assert proposed(NgramSpeculator([1, 2], 8), 8) == []
    assert proposed(NgramSpeculator([1, 2, 3], 8), 8) == []
    assert proposed(NgramSpeculator([1, 2, 3, 4, 2, 3], 8), 8) == []


def test_proposals_grow_while_they_are_accepted_and_shrink_when_they_are_not() -> None:
    speculator = NgramSpeculator([*range(50), 0, 1, 2], 20)
    lengths = []
    for right in (3, 6, 12, 4, 0, 0):
        lengths.append(len(proposed(speculator, 100)))
        speculator.record_acceptance(lengths[-1], right)
    assert lengths == [3, 6, 12, 20, 5, 2]


def test_rejected_proposals_pause_speculation_each_time_for_longer() -> None:
    speculator = NgramSpeculator([7] * 10, 8)
    pauses, waited = [], 0
    for _ in range(200):
        found = proposed(speculator, 8)
        if found:
            speculator.record_acceptance(len(found), 0)
            pauses.append(waited)
            waited = 0
        waited += 1
        speculator.extend([7])
    assert pauses[:2] == [0, 1]
    assert pauses[2:] == sorted(pauses[2:])
    assert pauses[-1] >= 64


@pytest.fixture(scope="module", params=["F32", "Q8_0"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    matrices = QuantType[request.param]
    return write_tiny_llama(folder / "tiny.gguf", matrices=matrices, memory=0.1, llama__context_length=512)


OPTIONS: list[dict[str, object]] = [
    {"temperature": 0},
    {"temperature": 0.3, "seed": 5},
    {"temperature": 1.0, "seed": 5, "top_k": 3},
    {"temperature": 0, "num_predict": 61, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "stop": ["e", "th"]},
    {"temperature": 0, "repeat_penalty": 1.3, "repeat_last_n": 20},
    {"temperature": 0, "num_predict": 600},
    {"temperature": 0, "num_predict": 600, "shift": False},
    {"temperature": 0, "num_predict": -2},
    {"temperature": 0, "repetition_penalty": 1.05},
    {"temperature": 0, "dry_multiplier": 0.5, "dry_allowed_length": 3, "dry_penalty_last_n": 40},
    {"temperature": 0.3, "seed": 5, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 0.5, "seed": 5, "top_n_sigma": 2.5, "top_k": 0},
    {"temperature": 0, "bad_words": ["the", "in", "q"]},
    {"temperature": 0, "ignore_eos": True, "min_tokens": 60, "stop": ["e"]},
    {"temperature": 0, "stop_token_ids": [70, 75], "include_stop_str_in_output": True},
]


@pytest.mark.parametrize(
    ("threads", "options"), [*((1, each) for each in OPTIONS), *((2, each) for each in OPTIONS[:4])], ids=str
)
def test_speculation_changes_nothing_but_the_time(
    path: Path, threads: int, options: dict[str, object]
) -> None:
    """A model with little memory soon repeats itself, so right and wrong tokens are proposed."""
    settings = {"num_predict": 150, **options}
    prompt = "the other and the other and an inner thing " * 3
    with chaski.load(path, threads=threads) as model:
        plain = model.generate(prompt, draft_num_predict=0, **settings)
        speculative = model.generate(prompt, draft_num_predict=8, **settings)
    assert speculative.text == plain.text
    assert speculative.token_ids == plain.token_ids
    assert speculative.logprobs == plain.logprobs
    assert speculative.done_reason == plain.done_reason
    assert speculative.done.stop_string == plain.done.stop_string
    assert speculative.done.generated_tokens == plain.done.generated_tokens
    assert plain.done.proposed_tokens == 0


def test_proposals_are_made_and_counted(path: Path) -> None:
    with chaski.load(path) as model:
        done = model.generate("ab", temperature=0, num_predict=200).done
    assert 0 < done.accepted_tokens < done.proposed_tokens


def test_proposals_leave_the_right_keys_in_the_cache(path: Path) -> None:
    prompt = "the other and the other and an inner thing " * 3
    with chaski.load(path) as model:
        answer = model.generate(prompt, temperature=0, num_predict=150)
        ids = [*model.tokenize(prompt), *answer.token_ids[:100], 5, 6, 7]
        after = model.generate(ids, temperature=0, num_predict=1, logprobs=True)
        assert after.cached_tokens == len(ids) - 3
    with chaski.load(path, prompt_cache=False) as model:
        assert model.generate(ids, temperature=0, num_predict=1, logprobs=True).logprobs == after.logprobs
        np.testing.assert_array_equal(model.logits(ids)[-1].argmax(), after.token_ids[0])
