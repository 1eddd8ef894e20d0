"""Go templates render like Go's own text/template, whose results are recorded in tests/data."""

from __future__ import annotations

import json
import threading
import time
from datetime import date
from pathlib import Path

import pytest

from chaski.errors import TemplateError
from chaski.text.template.go import GoTemplate
from chaski.text.template.go.evaluator import evaluate
from chaski.text.template.go.functions import FUNCTIONS
from chaski.text.template.go.parser import MAIN, parse
from chaski.text.template.go.values import from_json
from chaski.text.template.meter import RenderLimits, metering

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "go_templates.json").read_text())
DATA = from_json(RECORDED["data"])


def evaluated(source):
    with metering(RenderLimits(seconds=20)):
        templates = parse(source, FUNCTIONS)
        return evaluate(templates, templates[MAIN], DATA)


@pytest.mark.parametrize(("source", "expected"), RECORDED["language"])
def test_language(source, expected):
    if expected is None:
        with pytest.raises(TemplateError, match=r"line \d"):
            evaluated(source)
    else:
        assert evaluated(source) == expected


@pytest.mark.parametrize(("family", "name", "expected"), RECORDED["chats"])
def test_conversation(family, name, expected):
    request = RECORDED["conversations"][name]
    template = GoTemplate(RECORDED["families"][family], RenderLimits(seconds=20))
    if "suffix" in request:
        text = template.render_prompt(request["prompt"], suffix=request["suffix"])
    else:
        text = template.render(request["messages"], tools=request.get("tools"), think=request.get("think"))
    assert text == expected


def render(source, *contents, **options):
    messages = [{"role": "user", "content": content} for content in contents]
    return GoTemplate(source).render(messages, **options)


class TestConversation:
    def test_images_are_the_tags_in_the_content(self):
        messages = [
            {"role": "user", "content": "BBsee AA and [img]", "images": ["AA", "BB"]},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "CCthis", "images": ["CC"]},
        ]
        text = GoTemplate("{{ range .Messages }}{{ len .Images }}{{ .Content }};{{ end }}").render(messages)
        assert text == "2BBsee AA and [img];0yes;1CCthis;"

    def test_dates(self):
        assert render("{{ currentDate }}{{ .Response }}") == date.today().isoformat()

    def test_prompt_with_system(self):
        source = "{{ .System }}|{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}{{ .Think }}"
        template = GoTemplate(source)
        assert template.render_prompt("p", system="s", think=True) == "s|system:s;user:p;true"
        assert template.render_prompt("p") == "|user:p;false"

    def test_suffix_needs_a_place(self):
        with pytest.raises(TemplateError, match="cannot fill in"):
            GoTemplate("{{ .Prompt }}").render_prompt("a", suffix="b")

    def test_half_characters_become_replacements(self):
        assert render("{{ range .Messages }}{{ .Content }}{{ end }}", "a\ud800b") == "a\ufffdb"
        assert render("{{ $m := index .Messages 0 }}{{ slice $m.Content 0 1 }}", "é") == "\ufffd"

    def test_roles_are_lowered(self):
        template = GoTemplate("{{ range .Messages }}{{ .Role }}{{ end }}")
        assert template.render([{"role": "User", "content": ""}]) == "user"

    @pytest.mark.parametrize(
        ("messages", "says"),
        [
            ([{"role": "user", "content": 3}], "'content' must be text"),
            ([{"role": "user", "tool_calls": [{"function": []}]}], "'function' must be an object"),
            ([{"role": "user", "tool_calls": [{"function": {"arguments": "{}"}}]}], "must be a JSON object"),
            (
                [{"role": "user", "tool_calls": [{"function": {"arguments": {"a": b""}}}]}],
                "plain data, not bytes",
            ),
        ],
    )
    def test_bad_messages(self, messages, says):
        with pytest.raises(TemplateError, match=says):
            GoTemplate("{{ .Messages }}").render(messages)

    def test_the_template_decides_where_the_answer_begins(self):
        with pytest.raises(TemplateError, match="add_generation_prompt"):
            render("{{ .Messages }}", "a", add_generation_prompt=False)


class TestWhatATemplateTells:
    def test_names(self):
        names = GoTemplate("{{ if .Tools }}{{ $x := (.Suffix) }}{{ $.System }}{{ $x.Deep }}{{ end }}").names
        assert {"tools", "suffix", "system", "deep"} <= names
        assert "messages" not in names

    @pytest.mark.parametrize(
        ("family", "tags"),
        [
            ("qwen", ("<think>", "</think>")),
            ("deepseek", ("<think>", "</think>")),
            ("harmony", ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>")),
            ("mistral", None),
            ("llama3", None),
            ("gemma", None),
        ],
    )
    def test_tags(self, family, tags):
        template = GoTemplate(RECORDED["families"][family], RenderLimits(seconds=20))
        assert template.thinking_tags() == tags


LIMITS = RenderLimits(seconds=0.2, characters=100_000, elements=10_000)
DOUBLE = "{{ $x = print $x $x }}"
BOMBS = {
    "range": "{{ range 1000000000 }}{{ end }}",
    "nested ranges": "{{ range 99999 }}{{ range 99999 }}{{ end }}{{ end }}",
    "text": "{{ range 99999 }}" + "x" * 999 + "{{ end }}",
    "doubling": "{{ $x := `a` }}" + DOUBLE * 60,
    "doubling in a loop": "{{ $x := `a` }}{{ range 60 }}" + DOUBLE + "{{ end }}",
    "many copies": "{{ $x := `" + "a" * 50_000 + "` }}{{ range 999 }}{{ $y := print $x }}{{ end }}",
    "width": "{{ printf `%999999d` 1 }}",
    "width from an argument": "{{ printf `%*d` 1000000 1 }}",
    "precision": "{{ printf `%.999999f` 1.5 }}",
    "recursion": "{{ define `t` }}{{ template `t` }}{{ end }}{{ template `t` }}",
    "recursion that doubles": "{{ define `t` }}" + "{{ template `t` }}" * 2 + "{{ end }}{{ template `t` }}",
    "recursion in depth": "{{ define `t` }}"
    + "{{ if 1 }}" * 90
    + "{{ template `t` }}"
    + "{{ end }}" * 90
    + "{{ end }}"
    "{{ template `t` }}",
    "deep parentheses": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep blocks": "{{ if 1 }}" * 9000,
    "deep else": "{{ if 1 }}" + "{{ else if 1 }}" * 8000,
    "long": "x" * 200_000,
    "escapes": "{{ $x := `" + "\x01" * 30_000 + "` }}{{ json $x }}",
}


class TestLimits:
    @pytest.mark.parametrize("name", BOMBS)
    def test_bomb(self, name):
        start = time.process_time()
        with pytest.raises(TemplateError):
            GoTemplate(BOMBS[name], LIMITS).render([])
        assert time.process_time() - start < 5

    def test_long_conversations_are_far_from_the_limits(self):
        messages = [{"role": "user" if i % 2 else "assistant", "content": "word " * 100} for i in range(1000)]
        template = GoTemplate(RECORDED["families"]["llama3"], RenderLimits(seconds=20))
        assert len(template.render(messages)) > 500_000

    def test_threads_do_not_mix(self):
        template = GoTemplate("{{ range .Messages }}{{ $x := .Content }}{{ $x }};{{ end }}")
        wrong: list[str] = []

        def work(name):
            messages = [{"role": "tool", "content": name}] * 20
            wrong.extend(text for _ in range(50) if (text := template.render(messages)) != f"{name};" * 20)

        threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_errors_say_the_line(self):
        with pytest.raises(
            TemplateError, match=r"line 3: there is no function 'nosuch'; templates know and, call"
        ):
            GoTemplate("a\n\n{{ nosuch }}")
        with pytest.raises(TemplateError, match="line 2 of the chat template: position 9 is out of range"):
            render("\n{{ index .Messages 9 }}", "a")
