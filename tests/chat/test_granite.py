"""Granite 3's templates write no calls, so past calls are part of the content, as its models write them."""

from __future__ import annotations

from typing import Any

from chaski.chat.choice import choose_chat_format
from chaski.chat.sources import TemplateSources
from chaski.text.parsers import FoundCall
from tests.text.parsing import TOOLS, parsed

# The published template of Granite 3.3, reduced to tools and turns.
SOURCE = """{%- if tools %}{{- '<|start_of_role|>system<|end_of_role|>use <|tool_call|> followed by a \
JSON list of tools used.<|end_of_text|>' }}{%- endif %}
{%- for message in messages %}
{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>' }}
{%- endfor %}"""
CALLS = [
    {"function": {"name": "get_weather", "arguments": {"city": "Köln"}}},
    {"function": {"name": "now", "arguments": {}}},
]
WRITTEN = (
    '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Köln"}}, {"name": "now", "arguments": {}}]'
)


def rendered(source: str) -> str:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": CALLS},
        {"role": "tool", "content": "rain", "tool_name": "get_weather"},
    ]
    return choose_chat_format(TemplateSources("granite", "granite", source)).render(turns, TOOLS)


def test_past_calls_are_written_as_the_model_writes_them() -> None:
    text = rendered(SOURCE)
    assert f"assistant<|end_of_role|>{WRITTEN}<|end_of_text|>" in text
    assert "tool<|end_of_role|>rain" in text
    calls = parsed("granite", WRITTEN)
    assert calls == [FoundCall("get_weather", {"city": "Köln"}), FoundCall("now", {})]


def test_a_template_that_writes_calls_does_so() -> None:
    calls = "message['content'] ~ ((message.tool_calls or []) | map(attribute='function') | list | tojson)"
    text = rendered(SOURCE.replace("message['content']", calls))
    assert WRITTEN not in text
    assert 'assistant<|end_of_role|>[{"name": "get_weather", "arguments": {"city": "Köln"}}' in text
