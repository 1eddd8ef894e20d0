"""Rendering determines the abilities of a template, not words in it."""

from __future__ import annotations

import pytest

from chaski.chat.choice import choose_chat_format, go_format
from chaski.chat.sources import TemplateSources
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.go import GoTemplate
from chaski.text.template.probes import knows_role, shows_tools, thinks

_TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
_OPENED = "{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (_TURNS + "{{ tools | tojson }}", True),
        (_TURNS + "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}", True),
        ("{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}" + _TURNS, True),
        ("{% if tools is not defined %}{{ raise_exception('none') }}{% endif %}{{ tools | tojson }}", True),
        (_TURNS, False),
        (_TURNS + "{# tools #}", False),
        (_TURNS + "{% if tools %}You have tools.{% endif %}", False),
        (
            _TURNS + "{% for m in messages %}{{ m['tools'] | tojson if m['tools'] else '' }}{% endfor %}",
            False,
        ),
        ("{{ raise_exception('tools are not supported') }}", False),
    ],
)
def test_tools(source: str, expected: bool) -> None:
    assert shows_tools(ChatTemplate(source, "", "").probing()) is expected
    found = choose_chat_format(TemplateSources("m", "llama", source)).capabilities
    assert ("tools" in found) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (_TURNS + "{% if not enable_thinking %}<think></think>{% endif %}", True),
        (_TURNS + "{{ 'Reasoning: ' ~ (reasoning_effort or 'medium') }}", True),
        (_TURNS + "<assistant><think>\n", True),
        (_TURNS + "[THINK]", True),
        (_TURNS.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}"), True),
        (_TURNS.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}"), True),
        (_TURNS + _OPENED, False),
        (_TURNS + "{# enable_thinking, <think> and </think> are for another model #}" + _OPENED, False),
        ("Think before you answer, but write no </think>." + _TURNS + _OPENED, False),
        (_TURNS + "{% set thinking = false %}" + _OPENED, False),
    ],
)
def test_thinking(source: str, expected: bool) -> None:
    tags = ("<think>", "</think>")
    assert thinks(ChatTemplate(source, "", "").probing(), tags) is expected
    found = choose_chat_format(TemplateSources("m", "llama", source)).capabilities
    assert ("thinking" in found) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (_TURNS, False),
        (_TURNS + "{# 'critic' #}", False),
        (_TURNS.replace("{{ m.content }}", "{% if m.role == 'critic' %}!{% endif %}{{ m.content }}"), True),
        (
            "{% for m in messages if m.role in ['user', 'critic'] %}{{ m.role }}{{ m.content }}{% endfor %}",
            True,
        ),
        ("{% for m in messages if m.role != 'critic' %}{{ m.role }}{{ m.content }}{% endfor %}", False),
    ],
)
def test_roles(source: str, expected: bool) -> None:
    assert knows_role(ChatTemplate(source, "", "").probing(), "critic") is expected


def test_go_templates_are_probed_too() -> None:
    shows = "{{ range .Messages }}{{ .Content }}{{ end }}{{ .Tools }}"
    names = "{{ range .Messages }}{{ .Content }}{{ end }}{{ if .Tools }}You have tools.{{ end }}"
    sources = TemplateSources("m", "llama")
    assert go_format(shows, sources).capabilities == ("tools",)
    assert go_format(names, sources).capabilities == ()
    critic = '{{ range .Messages }}{{ if eq .Role "critic" }}!{{ end }}{{ .Role }}{{ .Content }}{{ end }}'
    assert knows_role(GoTemplate(critic).probing(), "critic")
    assert not knows_role(GoTemplate(shows).probing(), "critic")
