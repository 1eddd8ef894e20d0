"""Thoughts that end with their budget, with models that run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.requests import Chat
from chaski.errors import OptionError
from tests.speaking_llama import write_speaking_llama
from tests.tiny_llama import write_tiny_llama

WORDS = [f"t{number} " for number in range(9)]
SAYINGS = {
    "Q": ["<think>", *WORDS, "</think>", "Wait. ", "ok."],
}
TEMPLATE = (
    "{% for m in messages %}{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
    "{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
ALWAYS = (
    "{% for m in messages %}{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"
)


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def speaker(folder: Path) -> Iterator[chaski.LLM]:
    with chaski.load(write_speaking_llama(folder / "speaker.gguf", SAYINGS, TEMPLATE), threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def thinker(folder: Path) -> Iterator[chaski.LLM]:
    """A model whose template always opens a thought."""
    path = write_speaking_llama(folder / "thinker.gguf", SAYINGS, ALWAYS)
    with chaski.load(path, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def random_model(folder: Path) -> Iterator[chaski.LLM]:
    with chaski.load(write_tiny_llama(folder / "tiny.gguf"), threads=1, parallel=4) as loaded:
        yield loaded


@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_the_answer_follows_when_the_budget_is_spent(speaker: chaski.LLM, budget: int) -> None:
    answer = speaker.chat(asked("Q"), reasoning_budget=budget)
    assert (answer.thinking, answer.text) == ("".join(WORDS[: budget - 1]).strip(), "Wait. ok.")
    assert answer.done.thinking_tokens == (budget if budget > 1 else 0)
    assert answer.done_reason == "stop"


@pytest.mark.parametrize("budget", [-1, 10, 99])
def test_a_budget_that_suffices_changes_nothing(speaker: chaski.LLM, budget: int) -> None:
    assert speaker.chat(asked("Q"), reasoning_budget=budget).token_ids == speaker.chat(asked("Q")).token_ids


def test_no_thoughts(speaker: chaski.LLM, thinker: chaski.LLM) -> None:
    """The template switches them off, or else the first one ends at once."""
    for options in ({"reasoning_budget": 0}, {"think": False}, {"think": "high", "reasoning_budget": 0}):
        answer = speaker.chat(asked("Q"), **options)
        assert (answer.thinking, answer.text, answer.done.generated_tokens) == ("", "Wait. ok.", 3)
        answer = thinker.chat(asked("Q"), **options)
        assert (answer.thinking, answer.text, answer.done.generated_tokens) == ("", "Wait. ok.", 4)


def test_a_thought_that_the_prompt_opens(thinker: chaski.LLM) -> None:
    """The last token of the prompt decides what this model writes."""
    answer = thinker.chat(asked("Q"), reasoning_budget=4)
    assert (answer.thinking, answer.text) == ("".join(WORDS[:4]).strip(), "Wait. ok.")
    assert answer.done.thinking_tokens == 4


@pytest.mark.parametrize(
    ("think", "limit", "words"), [("low", 30, 5), ("minimal", 30, 2), ("medium", 14, 6), ("max", 14, 9)]
)
def test_levels_leave_a_share_for_the_answer(speaker: chaski.LLM, think: str, limit: int, words: int) -> None:
    answer = speaker.chat(asked("Q"), think=think, num_predict=limit)
    assert (answer.thinking, answer.text) == ("".join(WORDS[:words]).strip(), "Wait. ok.")


def test_a_number_takes_precedence_over_a_level(speaker: chaski.LLM) -> None:
    answer = speaker.chat(asked("Q"), think="low", num_predict=30, reasoning_budget=-1)
    assert answer.thinking == "".join(WORDS).strip()


def test_a_message_ends_the_thought(speaker: chaski.LLM) -> None:
    answer = speaker.chat(asked("Q"), reasoning_budget=3, reasoning_budget_message="stop")
    assert (answer.thinking, answer.text) == ("t0 t1 stop", "Wait. ok.")


def test_a_model_that_does_not_think_ignores_a_number(random_model: chaski.LLM) -> None:
    options: dict[str, Any] = {"seed": 1, "num_predict": 9}
    plain = random_model.chat(asked("Q"), **options)
    assert random_model.chat(asked("Q"), reasoning_budget=3, **options).token_ids == plain.token_ids
    with pytest.raises(OptionError, match="does not support thinking"):
        random_model.chat(asked("Q"), think="low", **options)


def test_a_format_begins_after_the_thought(speaker: chaski.LLM) -> None:
    answer = speaker.chat(asked("Q"), choice=["yes", "no"], reasoning_budget=3, temperature=0)
    assert answer.thinking == "t0 t1"
    assert answer.text in ("yes", "no")


def test_limits_stop_texts_and_stop_tokens_hold_for_forced_tokens(speaker: chaski.LLM) -> None:
    cut = speaker.chat(asked("Q"), reasoning_budget=3, num_predict=4)
    assert (cut.thinking, cut.text, cut.done_reason) == ("t0 t1", "", "length")
    stopped = speaker.chat(asked("Q"), reasoning_budget=3, stop="</think>")
    assert (stopped.thinking, stopped.text, stopped.done.stop_string) == ("t0 t1 ", "", "</think>")
    closing = speaker.tokenize("</think>")[-1]
    ended = speaker.chat(asked("Q"), reasoning_budget=3, stop_token_ids=[closing])
    assert (ended.text, ended.done_reason, ended.done.generated_tokens) == ("", "stop", 4)


def test_raw_prompts_use_the_tags_of_the_model(speaker: chaski.LLM) -> None:
    assert speaker.generate("Q", reasoning_budget=3, special=True).text == "<think>t0 t1 </think>Wait. ok."
    begun = speaker.generate("Q<think>", reasoning_budget=3, special=True)
    assert begun.text == "t0 t1 t2 </think>Wait. ok."


def test_a_beam_search_refuses_a_budget_and_ignores_a_level(speaker: chaski.LLM) -> None:
    options: dict[str, Any] = {"num_beams": 1, "temperature": 0}
    with pytest.raises(OptionError, match="reasoning_budget is 3; a beam search"):
        speaker.chat(asked("Q"), reasoning_budget=3, num_beams=2)
    assert speaker.chat(asked("Q"), reasoning_budget=3, **options).text == "Wait. ok."


def test_the_closing_text_must_be_spelled(speaker: chaski.LLM) -> None:
    prefix = {"opening": "<t>", "closing": "\udc80", "is_open": True}
    with pytest.raises(OptionError, match="cannot spell the end of a thought"):
        speaker.generate("x", format_thought=prefix, reasoning_budget=3)


def test_a_template_that_asks_for_the_number_gets_it(folder: Path) -> None:
    """As that of Seed-OSS."""
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}|{{ thinking_budget | default('-') }}|"
        "{{ enable_thinking }}|<think>"
    )
    with chaski.load(write_tiny_llama(folder / "seed.gguf", chat_template=template), threads=1) as model:
        texts = [
            model.prompts.conversation_text(Chat(tuple(asked("x")), (), {**options}, think=think))
            for options, think in (
                ({}, None),
                ({"reasoning_budget": 700}, "high"),
                ({}, "low"),
                ({}, False),
                ({"reasoning_budget": 0}, None),
            )
        ]
    ends = ["-|True", "700|True", "1024|True", "0|False", "0|False"]
    assert texts == [f"x|{end}|<think>" for end in ends]


# ---- a random model, whose thoughts are letters ----

PREFIX = {"opening": "e", "closing": "x", "is_open": True, "repeats": True, "end": "xyz"}
SEEDED: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "repeat_penalty": 1.3, "num_predict": 60}
BUDGETED: dict[str, Any] = {**SEEDED, "format_thought": PREFIX, "reasoning_budget": 9}


def test_forced_tokens_report_the_models_log_probabilities(random_model: chaski.LLM) -> None:
    answer = random_model.generate("abc", logprobs=True, top_logprobs=2, seed=4, **BUDGETED)
    assert "xyz" in answer.text
    prompt = random_model.tokenize("abc")
    whole = random_model.generate([*prompt, *answer.token_ids], prompt_logprobs=2, num_predict=1)
    assert answer.logprobs == whole.prompt_logprobs[len(prompt) - 1 :]


def answers(model: chaski.LLM, prompts: Sequence[str], **options: Any) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in model.generate_many(prompts, **options)]


def test_the_same_answer_together_and_alone_and_with_speculation(random_model: chaski.LLM) -> None:
    prompts = [f"prompt {number % 3} {number}" for number in range(8)]
    alone = [random_model.generate(prompt, seed=2, **BUDGETED).token_ids for prompt in prompts]
    assert answers(random_model, prompts, seed=2, **BUDGETED) == alone
    assert answers(random_model, prompts, seed=2, **{**BUDGETED, "draft_num_predict": 0}) == alone
    free = answers(random_model, prompts, seed=2, **SEEDED)
    assert all(some[:9] == others[:9] for some, others in zip(alone, free, strict=True))
    assert alone != free


def test_an_answer_that_is_computed_again_is_the_same(random_model: chaski.LLM) -> None:
    """As on another machine that knows its first tokens, which the sampler draws again."""
    from msgspec.structs import replace

    from chaski.chat.requests import generate_request
    from chaski.chat.several import Request

    call = generate_request("abc", "", {"seed": 3, **BUDGETED})
    whole = random_model.generate("abc", seed=3, **BUDGETED)
    for count in (5, 10, 11, 30):
        known = replace(call, written=whole.token_ids[:count])
        events = list(random_model._stream(Request(known)))
        tokens = [token for event in events if isinstance(event, chaski.Text) for token in event.token_ids]
        assert tuple(tokens) == whole.token_ids
