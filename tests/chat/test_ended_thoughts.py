"""Answers whose thoughts are ended, as the parser of a family reads them: text, and calls of tools."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chaski.chat.choice import choose_chat_format
from chaski.chat.constraints import with_prefix
from chaski.chat.efforts import EFFORTS, effort_of, template_level
from chaski.chat.sources import TemplateSources
from chaski.sample.lark import AnswerPrefix
from chaski.sample.thought_budget import ThoughtBudget, ends_of_thought, without_answer
from chaski.text.parsers import Content, FoundCall, Thought
from chaski.text.template.renderers import find_renderer
from tests.server.thinker import WEATHER

# A token is a mark, a word with the blanks before it, or blanks.
_TOKEN = re.compile(r"<[^<>]*>|\s*[^\s<]+|\s+|<")
THOUGHT = "one two three four five six"
ARGUMENTS = '{"city": "Cusco"}'


def answered(name: str, budget: int, *written: str, tools: bool = False) -> list[Any]:
    """Return the pieces of an answer of a model that writes `written[i]` after the i-th forced end."""
    chat_format = choose_chat_format(TemplateSources("test", "llama", renderer=find_renderer(name, 1)))
    given = [WEATHER] if tools else []
    prompt = chat_format.render([{"role": "user", "content": "x"}], given, think=True)
    parser = chat_format.parser(prompt, given)
    lead = parser.lead
    assert lead is not None
    option = with_prefix(chat_format, lead, {"reasoning_budget": budget}, may_call=tools)["format_thought"]
    prefix = AnswerPrefix.read(option)
    tokens: list[str] = []

    def ids(text: str) -> list[int]:
        found = _TOKEN.findall(text)
        tokens.extend(found)
        return list(range(len(tokens) - len(found), len(tokens)))

    end = next(ends_of_thought(prefix, False))
    ends = [ids(without_answer(end, prefix)), ids(end)] if prefix.may_call else [ids(end)]
    marks = {token: place for place, token in enumerate(tokens) if token.startswith("<|")}
    limit = ThoughtBudget(prefix, budget, ends, marks, lambda token: tokens[token].encode())
    begun = "" if lead.is_open else lead.opening
    pieces: list[Any] = []
    for number, text in enumerate(written):
        free = ids(begun + text if number == 0 else text)
        while free or limit.forced is not None:
            token = free.pop(0) if limit.forced is None else limit.forced
            if limit.forced is not None and number < len(written) - 1:
                free.clear()
            limit.accept(token)
            pieces += parser.feed(tokens[token])
    return [*pieces, *parser.flush()]


def said(pieces: list[Any], kind: type[Content | Thought]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind)).strip()


@pytest.mark.parametrize("name", ["harmony", "glimmer", "qwen3.5", "gemma4", "cohere", "deepseek3.1"])
def test_the_text_follows(name: str) -> None:
    pieces = answered(name, 8, THOUGHT + " seven eight nine", "Yes.")
    assert said(pieces, Content) == "Yes."
    assert "one two" in said(pieces, Thought)
    assert "nine" not in said(pieces, Thought)


CALLS = {
    "harmony": f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
    "qwen3.5": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nCusco\n</parameter>\n</function>\n</tool_call>"
    ),
    "cohere": '<|START_ACTION|>[{"tool_name": "weather", "parameters": {"city": "Cusco"}}]<|END_ACTION|>',
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_follows(name: str) -> None:
    pieces = answered(name, 5, THOUGHT, CALLS[name], tools=True)
    calls = [piece for piece in pieces if isinstance(piece, FoundCall)]
    assert calls == [FoundCall("weather", {"city": "Cusco"})]
    assert "six" not in said(pieces, Thought)


def test_a_second_thought_ends_with_the_header_of_the_answer() -> None:
    again = "<|channel|>analysis<|message|>I still wonder"
    pieces = answered("harmony", 5, THOUGHT, again, "Yes.", tools=True)
    assert said(pieces, Content) == "Yes."
    assert "still" not in said(pieces, Thought)


def test_levels_are_words_with_numbers() -> None:
    assert {name: effort.budget_of(10**6) for name, effort in EFFORTS.items()} == {
        "minimal": 512,
        "low": 1024,
        "medium": 8192,
        "high": 24576,
        "xhigh": 32768,
        "max": -1,
    }
    assert [effort.budget_of(200) for effort in EFFORTS.values()] == [20, 40, 100, 160, 190, -1]
    assert [template_level(name) for name in EFFORTS] == ["low", "low", "medium", "high", "max", "max"]
    assert [template_level(think) for think in (True, False, None, "own")] == [True, False, None, "own"]
    assert [effort_of(think) for think in (True, None, "own")] == [None] * 3
    off = effort_of(False)
    assert off is not None
    assert off.budget_of(100) == 0


def test_a_template_that_asks_for_the_number_gets_it() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}|{{ thinking_budget | default('-') }}|"
        "{{ enable_thinking }}|<think>"
    )
    chat_format = choose_chat_format(TemplateSources("test", "llama", source))
    assert chat_format.budget_variables(700) == {"thinking_budget": 700}
    assert chat_format.budget_variables(None) == {}
    plain = choose_chat_format(TemplateSources("test", "llama", "{{ messages[0].content }}<think>"))
    assert plain.budget_variables(700) == {}
