from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.chat.shortening import shortened
from chaski.errors import OptionError


def conversation(roles: str) -> list[dict[str, str]]:
    """Return a conversation: `suau` is system, user, assistant, user. The contents are numbers."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": names[role], "content": str(index)} for index, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("roles", "room", "kept"),
    [
        ("suauau", 6, "012345"),
        ("suauau", 5, "0345"),
        ("suauau", 3, "05"),
        ("suauau", 0, "05"),
        ("uauau", 4, "234"),
        ("uatau", 3, "4"),
        ("usuau", 4, "1234"),
        ("ssu", 0, "012"),
        ("sa", 0, "01"),
        ("", 0, ""),
    ],
)
def test_the_oldest_turns_go_first(roles: str, room: int, kept: str) -> None:
    messages = shortened(conversation(roles), lambda rest: len(rest) <= room)
    assert "".join(message["content"] for message in messages) == kept


def test_few_lengths_are_tried() -> None:
    tried = []

    def fits(rest: Sequence[Any]) -> bool:
        tried.append(len(rest))
        return len(rest) <= 100

    assert len(shortened(conversation("ua" * 2000), fits)) == 100
    assert len(tried) <= 12


def test_a_chat_that_outgrows_its_context(tiny_llama: Path) -> None:
    messages = [{"role": "system", "content": "be brief"}]
    for turn in range(12):
        messages += [{"role": "user", "content": f"question {turn}"}, {"role": "assistant", "content": "yes"}]
    messages.append({"role": "user", "content": "and now?"})
    with chaski.load(tiny_llama) as model:
        with pytest.raises(OptionError, match="tokens, but the context holds 256"):
            model.chat(messages, num_predict=5)
        answer = model.chat(messages, num_predict=5, truncate=True)
        whole = model.prompts.chat_format.render(messages)
        assert answer.prompt_tokens <= 256
        assert answer.prompt_tokens + answer.dropped_tokens == len(model.tokenize(whole, add_special=False))


def test_a_refusal_names_the_settings(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama, context=64) as model:
        with pytest.raises(chaski.ContextLengthError) as refused:
            model.generate([1] * 100)
        sizes = refused.value.length, refused.value.limit, refused.value.longest
        assert sizes == (100, 64, 256)
        assert "; set context, num_ctx or OLLAMA_CONTEXT_LENGTH to 256 or more" in str(refused.value)
        with pytest.raises(chaski.ContextLengthError, match="the model was made for 256 tokens"):
            model.generate([1] * 300)
    error = chaski.ContextLengthError("", 41_200, 32_768, 131_072)
    assert error.way_out() == "set OLLAMA_CONTEXT_LENGTH or num_ctx to 45056 or more, or shorten the prompt"


def test_a_single_message_that_does_not_fit_is_cut(tiny_llama: Path) -> None:
    with chaski.load(tiny_llama) as model:
        answer = model.chat([{"role": "user", "content": "x " * 300}], num_predict=1, truncate=True)
        assert answer.prompt_tokens == 256
        assert answer.dropped_tokens > 300
