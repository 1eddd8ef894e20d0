"""Whether a model thinks, and how much, under the names that templates of several families read."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.chat.choice import choose_chat_format
from chaski.chat.sources import TemplateSources

HEAD = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "Hi"}]


def written(template: str, think: bool | str | None, **variables: Any) -> str:
    found = choose_chat_format(TemplateSources("a model", "", HEAD + template, "<s>", "</s>"))
    return found.render(MESSAGES, None, think, variables).removeprefix("<user>Hi")


# Templates in the forms of families, with the texts for thinking and for not thinking.
COHERE = "{% set reasoning = reasoning if reasoning is defined else true %}{{ 'on' if reasoning else 'off' }}"
MINIMAX = "{{ 'mode: ' ~ thinking_mode if thinking_mode in ('enabled', 'disabled') else 'mode: adaptive' }}"
BAICHUAN = "{% if thinking_mode == 'on' %}<think>{% elif thinking_mode == 'off' %}<think></think>{% endif %}"
HUNYUAN = (
    "{% set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'no_think' %}"
    "{% if reasoning_effort not in ('low', 'high', 'no_think') %}{{ raise_exception('no') }}{% endif %}"
    "{{ reasoning_effort }}"
)
MUSE = "{{ reasoning_strength if reasoning_strength is not none and reasoning_strength else 'high' }}"
KIMI = (
    "{% set thinking_effort = thinking_effort if thinking_effort is defined else 'max' %}"
    "{% if thinking_effort not in ('low', 'high', 'max') %}{{ raise_exception('no') }}{% endif %}"
    "{{ thinking_effort if thinking else 'off' }}"
)
QWEN = "{{ 'off' if enable_thinking is defined and not enable_thinking else 'on' }}"
HARMONY = "Reasoning: {{ reasoning_effort or 'medium' }}"


@pytest.mark.parametrize(
    ("template", "on", "off"),
    [
        (COHERE, "on", "off"),
        (MINIMAX, "mode: adaptive", "mode: disabled"),
        (BAICHUAN, "", "<think></think>"),
        (HUNYUAN, "high", "no_think"),
        (MUSE, "high", "none"),
        (KIMI, "max", "off"),
        (QWEN, "on", "off"),
        # These models always think.
        (HARMONY, "Reasoning: medium", "Reasoning: medium"),
        ("<think>", "<think>", "<think>"),
    ],
)
def test_thinking_or_not(template: str, on: str, off: str) -> None:
    assert (written(template, True), written(template, False)) == (on, off)


# Like Nemotron Nano 2's.
WORD = (
    "{% set ns = namespace(thinks=true) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.thinks = '/no_think' not in m.content %}{{ m.content.replace('/no_think', '').strip() }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{{ '<think>' if ns.thinks else '<think></think>' }}"
)


def test_a_word_of_a_message_switches_it_off() -> None:
    found = choose_chat_format(TemplateSources("a model", "", WORD, "<s>", "</s>"))
    turns = [*MESSAGES, {"role": "assistant", "content": "Yes"}, *MESSAGES]
    assert found.render(turns, None, True) == "HiYesHi<think>"
    assert found.render(turns, None, False) == "HiYesHi<think></think>"
    assert found.render(turns[1:2], None, False).startswith("Yes")
    # Qwen 3 has a switch, and would show the word.
    shown = (
        "{{ messages[-1].content }}{% if enable_thinking is false %}<think></think>{% endif %}{# /no_think #}"
    )
    assert choose_chat_format(TemplateSources("a model", "", shown)).render(MESSAGES, None, False) == (
        "Hi<think></think>"
    )


@pytest.mark.parametrize(
    ("template", "low", "medium", "most"),
    [
        (HUNYUAN, "low", "high", "high"),
        (MUSE, "low", "medium", "max"),
        (KIMI, "low", "high", "max"),
        (HARMONY, "Reasoning: low", "Reasoning: medium", "Reasoning: max"),
    ],
)
def test_levels(template: str, low: str, medium: str, most: str) -> None:
    """A level that the template refuses becomes the nearest one that it accepts."""
    assert [written(template, level) for level in ("low", "medium", "max")] == [low, medium, most]


def test_variables_of_a_request_come_first() -> None:
    assert written(MINIMAX, True, thinking_mode="enabled") == "mode: enabled"
    assert written(HUNYUAN, True, reasoning_effort="low") == "low"
