"""Every published format of calls: parsers read the templates' output, however the text is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaski.chat.choice import choose_chat_format, go_format
from chaski.chat.sources import TemplateSources
from chaski.text.parsers import Content, FoundCall
from chaski.text.parsers.formats import parser_for
from chaski.text.parsers.probe import CALLS, Answer, name_for
from tests.text.call_formats import CALLS_ONLY, CASES, TOOLS, Rendered, chat_format, fault, read, recorded
from tests.text.published_templates import templates

KINDS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "call_formats.json").read_text()
)
IDS = [kind["templates"][0] for kind in KINDS]
PARSERS = list({kind["parser"]: kind for kind in KINDS}.values())


def parser_of(kind: dict[str, Any], text: Rendered):
    return parser_for(kind["parser"], TOOLS, text.prompt, thinking_tags=kind["tags"] and tuple(kind["tags"]))


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_calls_are_read_back(kind):
    assert set(kind["cases"]) == set(CASES)
    for name, recorded_text in kind["cases"].items():
        text = Rendered(*recorded_text)
        for portions in ([text.text], text.text):
            pieces = read(parser_of(kind, text), portions)
            assert not fault(kind["templates"][0], pieces, CASES[name], text), name


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_the_parser_is_chosen_by_what_the_template_writes(kind):
    prompt, text, num_calls = kind["probe"]
    name = name_for(Answer(prompt, text, CALLS[:num_calls]), (kind["tags"] or [""])[-1])
    # Bare JSON identifies no family.
    assert name == kind["parser"] or kind["parser"] in ("llama3", "llama4")


@pytest.mark.parametrize("kind", PARSERS, ids=[kind["parser"] for kind in PARSERS])
@pytest.mark.parametrize("case", ["said and thought", "marks", "nested"])
def test_every_place_to_cut(kind, case):
    text = Rendered(*kind["cases"][case])
    whole = read(parser_of(kind, text), [text.text])
    for position in range(len(text.text)):
        assert read(parser_of(kind, text), [text.text[:position], text.text[position:]]) == whole


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 3000), max_size=12))
def test_any_cuts(kind, case, cuts):
    text = Rendered(*kind["cases"][case])
    bounds = [0, *sorted(min(cut, len(text.text)) for cut in cuts), len(text.text)]
    portions = [text.text[a:b] for a, b in pairwise(bounds)]
    assert read(parser_of(kind, text), portions) == read(parser_of(kind, text), [text.text])


@pytest.mark.parametrize("kind", PARSERS, ids=[kind["parser"] for kind in PARSERS])
def test_a_call_that_breaks_off_is_no_other_call(kind):
    """A truncated answer has the same calls or fewer; no call has a part of a value."""
    text = Rendered(*kind["cases"]["lines"])
    (wanted,) = CASES["lines"].calls
    for position in range(len(text.text)):
        pieces = read(parser_of(kind, text), [text.text[:position]])
        calls = [piece for piece in pieces if isinstance(piece, FoundCall)]
        assert calls in ([], [wanted]), text.text[:position]


class TestDerived:
    """Formats outside the table: JSON between the template's own tags."""

    TEMPLATE = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}CALL"
        "{% endfor %}<eot>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )

    @pytest.mark.parametrize(
        ("call", "written"),
        [
            ("<muse>{{ c.function | tojson }}</muse>", '<muse>{"name": "now", "arguments": {}}</muse>'),
            ("@@{{ c.function.name }}##{{ c.function.arguments | tojson }}", "@@now##{}"),
            ("@@{{ c.function.name }}##{{ c.function.arguments | tojson }}!!", "@@now##{}!!"),
            ("<c>{{ c.function.name }}\n{{ c.function.arguments | tojson }}</c>", "<c>now\n{}</c>"),
            ('<c n="{{ c.function.name }}">{{ c.function.arguments | tojson }}</c>', '<c n="now">{}</c>'),
            ('<c>{"{{ c.function.name }}": {{ c.function.arguments | tojson }}}</c>', '<c>{"now": {}}</c>'),
            (
                "<c>{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}="
                "{{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})</c>",
                "<c>now()</c>",
            ),
        ],
    )
    def test_tags_of_a_template(self, call, written):
        found = chat_format(self.TEMPLATE.replace("CALL", call))
        assert found.parser_name == "bare-json"
        pieces = read(found.parser("", TOOLS), f"I look. {written}{written} Done")
        assert pieces == [Content("I look."), FoundCall("now", {}), FoundCall("now", {}), Content("Done")]

    @pytest.mark.parametrize(
        "function",
        [
            "<function=NAME>ARGUMENTS<parameter=KEY>VALUE</parameter>END</function>",
            '<invoke name="NAME">ARGUMENTS<parameter name="KEY">VALUE</parameter>END</invoke>',
        ],
    )
    def test_tags_around_known_tags(self, function):
        call = function.replace("NAME", "{{ c.function.name }}").replace("KEY", "{{ k }}")
        call = call.replace("ARGUMENTS", "{% for k, v in c.function.arguments.items() %}")
        call = call.replace("VALUE", "{{ v }}").replace("END", "{% endfor %}")
        found = chat_format(self.TEMPLATE.replace("CALL", f"<my:calls>{call}</my:calls>"))
        written = function.replace("NAME", "write_file").replace("ARGUMENTS", "").replace("END", "")
        written = written.replace("KEY", "path").replace("VALUE", "a</my:calls>b")
        pieces = read(found.parser("", TOOLS), f"Hi <my:calls>{written}</my:calls>")
        assert pieces == [Content("Hi"), FoundCall("write_file", {"path": "a</my:calls>b"})]

    @pytest.mark.parametrize(
        ("call", "format"),
        [
            # Kimi K2 and Kimi Linear write the id, which contains the name.
            (
                "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
                "{{ c.function.arguments | tojson }}<|tool_call_end|>",
                "kimi-k2",
            ),
            # DeepSeek V4.1
            (
                '<｜DSML｜ calls>\n<｜DSML｜ invoke name="{{ c.function.name }}">\n'
                '{% for k, v in c.function.arguments.items() %}<｜DSML｜ parameter name="{{ k }}" '
                "string=\"{{ 'true' if v is string else 'false' }}\">{{ v }}</｜DSML｜ parameter>\n"
                "{% endfor %}</｜DSML｜ invoke>\n</｜DSML｜ calls>",
                "deepseek3.2",
            ),
            # LongCat
            (
                "<longcat_tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}"
                "<longcat_arg_key>{{ k }}</longcat_arg_key>\n<longcat_arg_value>{{ v }}</longcat_arg_value>\n"
                "{% endfor %}</longcat_tool_call>",
                "longcat",
            ),
            # Hy 4: tags around all calls distinguish it from GLM 4.7.
            (
                "<tool_calls><tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
                "<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>"
                "{% endfor %}</tool_call></tool_calls>",
                "hy4",
            ),
            # MiniCPM 3: the tags of thoughts distinguish it from LFM 2.
            (
                "<|tool_call_start|>\n```python\n{{ c.function.name }}({% for k, v in "
                "c.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}"
                "{% endfor %})\n```\n<|tool_call_end|>{# <|thought_end|> #}",
                "minicpm3",
            ),
            # Hunyuan A13B and ERNIE 4.5: tags around answers distinguish them from others.
            ("<tool_calls>[{{ c.function | tojson }}]</tool_calls>", "minimax-m1"),
            (
                "<tool_calls>[{{ c.function | tojson }}]</tool_calls>{# <answer></answer> #}",
                "hunyuan-a13b",
            ),
            ("<tool_call>\n{{ c.function | tojson }}\n</tool_call>{# <response></response> #}", "ernie"),
            # PLaMo 3
            (
                "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{{ c.function.name }}"
                "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:msg|>"
                "{{ c.function.arguments | tojson }}<|plamo:end_tool_arguments:plamo|>"
                "<|plamo:end_tool_request:plamo|>",
                "plamo3",
            ),
            # Templates that write no calls: their text names the family.
            ("{# <|python_start|> #}", "llama4"),
            ("{# <|tool|><|/tool|> #}", "phi4"),
            ("{# <|observation|> #}", "glm-4"),
            ("{# [unused9] #}", "pangu"),
            # Hunyuan's dense models write their answers as A13B does.
            ("{# </think><answer></answer> #}", "hunyuan-a13b"),
            ("{# </think><response></response> #}", "ernie"),
        ],
    )
    def test_families(self, call, format):
        found = chat_format(self.TEMPLATE.replace("CALL", call))
        assert (found.parser_name, found.call_block) == (format, None)

    def test_the_architecture_decides_between_equal_calls(self):
        source = self.TEMPLATE.replace("CALL", "<tool_calls>[{{ c.function | tojson }}]</tool_calls>")
        for architecture, format in (("hunyuan-moe", "hunyuan-a13b"), ("jamba", "minimax-m1")):
            found = choose_chat_format(TemplateSources("a model", architecture, source))
            assert found.parser_name == format

    def test_thoughts_of_exaone_deep(self):
        source = self.TEMPLATE.replace("m.content", "m.content.split('</thought>')[-1]")
        found = chat_format(source.replace("<assistant>", "<assistant><thought>\n"))
        assert (found.capabilities, found.thinking_tags) == (("thinking",), ("<thought>", "</thought>"))

    def test_bare_json_stays_bare(self):
        found = chat_format(self.TEMPLATE.replace("CALL", "{{ c.function | tojson }}"))
        assert (found.parser_name, found.call_block) == ("bare-json", None)

    def test_words_in_the_template_do_not_count(self):
        source = "{# <|tool_call_start|> [TOOL_CALLS] #}" + self.TEMPLATE.replace(
            "CALL", "<TOOLCALL>[{{ c.function | tojson }}]</TOOLCALL>"
        )
        assert chat_format(source).parser_name == "nemotron"

    def test_go_templates(self):
        source = (
            "{{ range .Messages }}<|{{ .Role }}|>{{ .Content }}{{ range .ToolCalls }}<TOOLCALL>"
            '[{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}]</TOOLCALL>{{ end }}'
            "{{ end }}<|assistant|>"
        )
        found = go_format(source, TemplateSources("a model", ""))
        assert found.parser_name == "nemotron"
        assert read(found.parser("", TOOLS), '<TOOLCALL>[{"name": "now"}]</TOOLCALL>') == [
            FoundCall("now", {})
        ]
        derived = go_format(source.replace("TOOLCALL>", "muse>"), TemplateSources("a model", ""))
        pieces = read(derived.parser("", TOOLS), 'Hi <muse>[{"name": "now"}]</muse>')
        assert pieces == [Content("Hi"), FoundCall("now", {})]


@pytest.mark.oracle
def test_published_templates(capsys):
    """Prints the table of docs/call-formats.md."""
    rows, faults = [], []
    for name, source in templates().items():
        found = chat_format(source)
        cases = dict(recorded(source))
        for case, text in cases.items():
            pieces = read(found.parser(text.prompt, TOOLS), text.text)
            if wrong := fault(name, pieces, CASES[case], text):
                faults.append(f"{name}, {case}: {wrong}")
        note = next((why for part, why in CALLS_ONLY.items() if part in name), "")
        result = f"{len(cases)} of {len(cases)}" if cases else "writes no calls"
        rows.append(f"| {name} | `{found.parser_name}` | {result} | {note} |")
    with capsys.disabled():
        print("\n| template | parser | round trips | the template |\n|---|---|---|---|", *rows, sep="\n")
    assert not faults
    assert len(rows) >= 60
