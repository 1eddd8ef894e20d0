"""The ends of answers and forbidden texts, with a random model of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import chaski
from chaski.errors import OptionError
from tests.tiny_llama import write_tiny_llama

SEEDED: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": 3, "num_predict": 80}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chaski.LLM]:
    path = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", llama__context_length=128)
    with chaski.load(path, threads=1) as loaded:
        yield loaded


def likely(model: chaski.LLM, *ids: int) -> dict[int, float]:
    return dict.fromkeys(ids, 100.0)


def test_an_answer_has_at_least_so_many_tokens(model: chaski.LLM) -> None:
    ends = likely(model, *model.tokenizer.eos_ids)
    assert model.generate("x", logit_bias=ends, **SEEDED).done.generated_tokens == 1
    answer = model.generate("x", logit_bias=ends, min_tokens=7, **SEEDED)
    assert (answer.done.generated_tokens, answer.done_reason) == (8, "stop")
    letter = model.tokenize("e")[-1]
    stopped = model.generate("x", logit_bias=likely(model, letter), stop="ee", min_tokens=5, **SEEDED)
    assert (stopped.text, stopped.done.generated_tokens) == ("eeeee", 7)


def test_end_tokens_may_be_ignored(model: chaski.LLM) -> None:
    ends = likely(model, *model.tokenizer.eos_ids)
    answer = model.generate("x", logit_bias=ends, ignore_eos=True, **SEEDED)
    assert (answer.done.generated_tokens, answer.done_reason) == (80, "length")
    assert not model.tokenizer.eos_ids & set(answer.token_ids)
    whole = model.generate("x", ignore_eos=True, choice=["ab"], min_tokens=50, **SEEDED)
    assert (whole.text, whole.done_reason) == ("ab", "stop"), "what is complete ends all the same"


@pytest.mark.parametrize(("keeps", "text"), [(False, "aa"), (True, "aab")])
def test_other_tokens_may_end_it(model: chaski.LLM, keeps: bool, text: str) -> None:
    answer = model.generate(
        "x",
        regex="aab+",
        stop_token_ids=model.tokenize("b")[-1:],
        include_stop_str_in_output=keeps,
        **SEEDED,
    )
    assert (answer.text, answer.done_reason, answer.done.stop_string) == (text, "stop", None)
    assert answer.done.generated_tokens == 3
    stopped = model.generate(
        "x", choice=["say aab now"], stop="ab", include_stop_str_in_output=keeps, **SEEDED
    )
    assert (stopped.text, stopped.done.stop_string) == ("say aab" if keeps else "say a", "ab")
    with pytest.raises(OptionError, match="token id 99999 is not in"):
        model.generate("x", stop_token_ids=[99999])


def test_bad_words_are_not_said(model: chaski.LLM) -> None:
    often = likely(model, *model.tokenize("ab", add_special=False))
    assert "ab" in model.generate("x", logit_bias=often, **SEEDED).text
    assert "ab" not in model.generate("x", logit_bias=often, bad_words=["ab"], **SEEDED).text
    only = model.generate("x", logit_bias=often, bad_words="a", **SEEDED).text
    assert set(only) == {"b"}


def test_an_answer_may_end_where_the_context_does(model: chaski.LLM) -> None:
    asked: Any = {"ignore_eos": True, "seed": 1}
    full = model.generate("x" * 100, num_predict=-2, **asked)
    assert (full.done_reason, full.done.shifted_tokens) == ("length", 0)
    assert full.done.prompt_tokens + full.done.generated_tokens == 128 + 1


def test_an_answer_without_limit_ends_after_ten_contexts(model: chaski.LLM) -> None:
    answer = model.generate("x" * 100, num_predict=-1, ignore_eos=True, seed=1)
    assert (answer.done_reason, answer.done.generated_tokens) == ("length", 10 * 128)
    assert answer.done.shifted_tokens > 0


def test_repetitions_are_avoided(model: chaski.LLM) -> None:
    prompt = "abcdefgh\nabcdefgh"
    free = {
        "temperature": 0,
        "num_predict": 1,
        "logit_bias": likely(model, *model.tokenize("x", add_special=False)),
    }
    follow = {model.tokenize("\n")[-1]: 60.0, model.tokenize("x")[-1]: 55.0}
    assert model.generate(prompt, **{**free, "logit_bias": follow}).text == "\n"
    dry: Any = {"dry_multiplier": 9.0, "dry_sequence_breakers": ["%"]}
    assert model.generate(prompt, **{**free, "logit_bias": follow}, **dry).text == "x"
    assert model.generate(prompt, **{**free, "logit_bias": follow}, dry_multiplier=9.0).text == "\n"
    unseen = model.generate("abab", repetition_penalty=1e9, temperature=0, num_predict=40)
    assert len(set(unseen.token_ids)) == 40
