"""The rendered text of a model's template determines its parser, within bounds."""

from __future__ import annotations

import pytest

from chaski.chat.choice import choose_chat_format, plain_format
from chaski.chat.demanded_calls import DemandedCall
from chaski.chat.sources import TemplateSources
from chaski.text.parsers import Content, FoundCall, Thought
from chaski.text.parsers.formats import FORMATS, parser_for, usual_end

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}CALLS</s>{% endfor %}<assistant>"
PYTHON = (
    "{% for c in m.tool_calls or [] %}<|tool_call_start|>[{{ c.function.name }}({% for k, v in "
    "c.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})]"
    "<|tool_call_end|>{% endfor %}"
)
WITH_CALLS, PLAIN = TURNS.replace("CALLS", PYTHON), TURNS.replace("CALLS", "")
TOOLS = [
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
]


def chosen(source: str, architecture: str = "", parser: str = ""):
    return choose_chat_format(TemplateSources("m", architecture, jinja=source, parser=parser))


def test_calls_that_are_written_decide() -> None:
    found = chosen(WITH_CALLS)
    assert found.parser_name == "lfm2"
    parser = found.parser("", TOOLS)
    pieces = [*parser.feed("Hm. <|tool_call_start|>[now()]<|tool_call_end|>"), *parser.flush()]
    assert pieces == [Content("Hm."), FoundCall("now", {})]


def test_words_of_a_template_do_not() -> None:
    assert chosen("{# [TOOL_CALLS] <tool_call> #}" + WITH_CALLS).parser_name == "lfm2"


def test_a_stored_name_stays() -> None:
    assert chosen(WITH_CALLS, parser="hermes").parser_name == "hermes"


@pytest.mark.parametrize(
    ("told", "architecture", "expected"),
    [
        ("List of tools: [{{ tools }}]", "", "lfm2"),
        ("answer with <TOOLCALL>[...]</TOOLCALL>", "", "nemotron"),
        ("", "lfm2moe", "lfm2"),
        ("", "internlm2", "internlm"),
        ("", "other", "bare-json"),
    ],
)
def test_without_calls_instructions_and_architecture_do(told: str, architecture: str, expected: str) -> None:
    source = ("{% if tools %}" + told + "{% endif %}" if told else "") + PLAIN
    assert chosen(source, architecture).parser_name == expected


def test_roles_are_known_by_what_is_rendered() -> None:
    """The roles of a template with its own role, of one that writes any role, and without a template."""
    own = PLAIN.replace("<{{ m.role }}>", "{{ '!' if m.role == 'critic' else '' }}<turn>")
    for found, expected in ((chosen(own), True), (chosen(PLAIN), False), (plain_format(), False)):
        assert found.knows_role("critic") is expected


@pytest.mark.parametrize("name", sorted(name for name, format in FORMATS.items() if format.thinking))
def test_a_demanded_call_follows_thoughts_of_every_format(name: str) -> None:
    """The grammar begins after the text between a thought and the answer."""
    for thinks in (True, False):
        parser = DemandedCall(parser_for(name, (), "", thinks, FORMATS[name].thinking if thinks else None))
        lead = parser.lead
        thought = f"{lead.opening}a{usual_end(name, lead)}" if lead and thinks else ""
        pieces = parser.feed(f'{thought}{{"name": "now", "arguments": {{}}}}') + parser.flush()
        assert pieces == [*([Thought("a")] if thought else []), FoundCall("now", {})]
