"""The start of parsers, the choice of a parser, and the speed with long answers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from chaski.errors import UnsupportedError
from chaski.text.parsers import Content, FoundCall, Thought
from chaski.text.parsers.blocks import CallBlock
from chaski.text.parsers.formats import FORMATS, choose_format, parser_for, tags_in
from chaski.text.parsers.readers import read_json
from chaski.text.template.go import GoTemplate
from tests.text.parsing import CALL, NOW, ROME, TOOLS, parsed
from tests.tiers import long_after

FAMILIES = json.loads((Path(__file__).parents[1] / "data" / "go_templates.json").read_text())["families"]


class TestStart:
    def test_the_prompt_may_have_opened_the_thinking(self):
        pieces = parsed("hermes", ["so", "\n</think>\nHi"], prompt="<|im_start|>assistant\n<think>\n")
        assert pieces == [Thought("so"), Content("Hi")]

    def test_the_prompt_may_have_closed_the_thinking(self):
        assert parsed("hermes", ["Hi"], prompt="<think>\n\n</think>\n\n") == [Content("Hi")]

    def test_the_prompt_may_have_begun_a_message(self):
        assert parsed(
            "harmony", ["so<|end|>"], prompt="<|start|>assistant<|channel|>analysis<|message|>Hm, "
        ) == [Thought("so")]
        prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
        assert parsed("harmony", ["<|channel|>final<|message|>Hi"], prompt=prompt) == [Content("Hi")]
        assert parsed("harmony", [], prompt=prompt) == []

    def test_without_tools_calls_are_content(self):
        text = f"<tool_call>{ROME}</tool_call>"
        assert parsed("hermes", [text], tools=()) == [Content(text)]
        assert parsed("bare-json", [ROME], tools=()) == [Content(ROME)]

    def test_without_thinking_tags_are_content(self):
        assert parsed("hermes", ["<think>a</think>b"], thinking=False) == [Content("<think>a</think>b")]

    def test_a_thought_in_the_prompt_is_one_whatever_was_asked_for(self):
        pieces = parsed("olmo3-think", ["so</think>Hi"], prompt="<think>", thinking=False)
        assert pieces == [Thought("so"), Content("Hi")]

    def test_a_thought_may_have_begun(self):
        pieces = parsed("hermes", [" so</think>Hi"], prompt="<think>\nI wonder", thought="I wonder")
        assert pieces == [Thought(" so"), Content("Hi")]
        assert parsed("hermes", [" so"], prompt="<think>\nI wonder") == [Content(" so")]

    def test_the_answer_may_open_the_thinking_again(self):
        for portions in (["<think>\nso</think>Hi"], "<think>\nso</think>Hi"):
            assert parsed("hermes", portions, prompt="<think>\n") == [Thought("so"), Content("Hi")]
        assert parsed("hermes", ["<thi"], prompt="<think>\n") == [Thought("<thi")]

    def test_a_call_in_a_thought_counts_where_the_answer_ends_with_it(self):
        call = f"<tool_call>{ROME}</tool_call>"
        for portions in ([f"I look.\n{call}\n"], f"I look.\n{call}\n"):
            assert parsed("hermes", portions, prompt="<think>") == [Thought("I look."), CALL]
        text = f"I could {call}.</think>{call}"
        for portions in ([text], text):
            pieces = parsed("hermes", portions, prompt="<think>")
            assert pieces == [Thought(f"I could {call}."), CALL]
        assert parsed("hermes", [f"I could {call}"], prompt="<think>", tools=()) == [
            Thought(f"I could {call}")
        ]
        assert parsed("hermes", ["Use <tool_call> tags"], prompt="<think>") == [
            Thought("Use <tool_call> tags")
        ]

    def test_gemma_may_think_between(self):
        text = (
            "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d<|tool_call>call:now{}<tool_call|>"
        )
        for portions in ([text], text):
            assert parsed("gemma4", portions) == [
                Thought("a"),
                Content("b"),
                Thought("c"),
                Content("d"),
                NOW,
            ]
        assert parsed("gemma4", ["<|tool_call>call:now{}<tool_call|><|tool_response>"]) == [NOW]

    def test_tags_that_are_no_text_are_never_content(self):
        pieces = parsed("gemma4", ["<|channel>thought\n<channel|>Hi"], thinking=False)
        assert pieces == [Content("Hi")]

    @pytest.mark.parametrize("written", ["get-weather", "get_weather"])
    def test_harmony_may_call_by_the_name_of_a_type(self, written):
        tools = [{"function": {"name": "get-weather"}}, {"function": {"name": "now"}}]
        text = f"<|channel|>commentary to=functions.{written}<|message|>{{}}<|call|>"
        assert parsed("harmony", [text], tools=tools) == [FoundCall("get-weather", {})]

    def test_tags_of_a_template_of_its_own(self):
        pieces = parsed(
            "bare-json",
            f"<muse>a</muse>b @@CALL {ROME} c",
            thinking_tags=("<muse>", "</muse>"),
            block=CallBlock("@@CALL", None, read_json),
        )
        assert pieces == [Thought("a"), Content("b"), CALL, Content("c")]

    def test_what_is_certain_comes_at_once(self):
        parser = parser_for("hermes", TOOLS)
        assert parser.feed("Hello <") == [Content("Hello")]
        assert parser.feed("b> ") == [Content(" <b>")]
        assert parser.feed(f"<tool_call>{ROME}</tool_call") == []
        assert parser.feed(">") == [CALL]
        assert parser.flush() == []


class TestChoice:
    @pytest.mark.parametrize(
        ("family", "format"),
        [
            ("qwen", "hermes"),
            ("mistral", "mistral"),
            ("deepseek", "deepseek3"),
            ("command-r", "command-r"),
            ("llama3", "llama3"),
            ("harmony", "harmony"),
            ("chatml", "bare-json"),
        ],
    )
    def test_by_template(self, family, format):
        assert choose_format(FAMILIES[family]) == format

    @pytest.mark.parametrize(
        ("format", "tag"), [("granite", "response"), ("ernie", "response"), ("hunyuan-a13b", "answer")]
    )
    def test_tags_around_what_follows_thoughts(self, format, tag):
        plain, tags = f"<{tag}>\nb\n</{tag}>", ("<think>", "</think>")
        assert parsed(format, f"<think>a</think>\n{plain}", thinking_tags=tags) == [
            Thought("a"),
            Content("b"),
        ]
        assert parsed(format, plain, thinking_tags=tags, thinking=False) == [Content(plain)]
        closed = parsed(format, plain, thinking_tags=tags, thinking=False, prompt="<think>\n\n</think>\n")
        assert closed == [Content("b")]

    def test_granite_by_its_instructions(self):
        assert choose_format("respond only with <|tool_call|> followed by a JSON list") == "granite"

    def test_by_architecture(self):
        assert choose_format("", "gptoss") == "harmony"
        assert choose_format("", "qwen3") == "bare-json"

    def test_thinking_tags(self):
        assert tags_in("{{ '</think>' }}") == ("<think>", "</think>")
        assert tags_in(FAMILIES["gemma"]) is None
        assert GoTemplate(FAMILIES["qwen"]).thinking_tags() == tags_in(FAMILIES["qwen"])

    def test_no_such_format(self):
        with pytest.raises(UnsupportedError, match="no parser 'from-the-future'; use one of apertus"):
            parser_for("from-the-future")

    def test_no_mark_begins_another(self):
        for format in FORMATS.values():
            marks = [block.opening for block in format.blocks] + list(format.silent)
            assert not any(a != b and b.startswith(a) for a in marks for b in marks)


@pytest.mark.parametrize("inside", ["x", "</tool_call>", " ", "{", "\\\\"])
def test_long_calls_are_quick(inside):
    text = (
        '<tool_call>{"name": "now", "arguments": {"a": "'
        + inside * (100_000 // len(inside))
        + '"}}</tool_call>'
    )
    portions = [text[i : i + 8] for i in range(0, len(text), 8)]
    start = time.process_time()
    assert isinstance(parsed("hermes", portions)[0], FoundCall)
    assert time.process_time() - start < 3


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize(
    "noise", long_after(2, ["[", " ", "<tool_call>", "<arg_key>", "```", '"', "<function=f><parameter=p>"])
)
def test_long_noise_is_quick(format, noise):
    start = time.process_time()
    for opening in ("", *(block.opening for block in FORMATS[format].blocks)):
        parsed(format, [opening, *[noise * 50] * 100])
    assert time.process_time() - start < 3
