"""The text that ends a thought early: as the template writes it, or else as the family does."""

from __future__ import annotations

import pytest

from chaski.chat.choice import choose_chat_format, go_format
from chaski.chat.sources import TemplateSources
from chaski.text.parsers import Content, Lead, Thought
from chaski.text.parsers.formats import FORMATS, parser_for, usual_end
from chaski.text.template.renderers import RENDERERS, find_renderer

SHOWN = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n"
    "</think>\n\n{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
DROPPED = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}[assistant]<think>"
)
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
HARMONY_END = "<|end|><|start|>assistant<|channel|>final<|message|>"


def end_of(jinja: str) -> str:
    chat_format = choose_chat_format(TemplateSources("test", "llama", jinja))
    lead = chat_format.parser(chat_format.render([{"role": "user", "content": "x"}], think=True)).lead
    assert lead is not None
    return chat_format.end_of_thought(lead)


@pytest.mark.parametrize(
    ("jinja", "end"), [(SHOWN, "\n</think>\n\n"), (DROPPED, "\n</think>\n\n"), (PARTS, "[/THINK]")]
)
def test_templates_in_jinja(jinja: str, end: str) -> None:
    assert end_of(jinja) == end


def test_templates_of_ollama() -> None:
    source = (
        "{{ range .Messages }}[{{ .Role }}]{{ if .Thinking }}<think>{{ .Thinking }}</think>\n{{ end }}"
        "{{ .Content }}{{ end }}"
    )
    chat_format = go_format(source, TemplateSources("test", "llama"))
    assert chat_format.end_of_thought(Lead("<think>", "</think>")) == "</think>\n"


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.thinks])
def test_the_answer_follows_the_usual_end_of_every_format(name: str) -> None:
    prompt = "<|start|>assistant" if name in ("harmony", "glimmer") else ""
    parser = parser_for(name, prompt=prompt, thinking_tags=FORMATS[name].thinking)
    lead = parser.lead
    assert lead is not None
    pieces = parser.feed(f"{lead.opening}I wonder{usual_end(name, lead)}Yes") + parser.flush()
    said = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    assert (thought.strip(), said) == ("I wonder", "Yes")


@pytest.mark.parametrize("name", RENDERERS)
def test_the_answer_follows_the_end_of_every_renderer(name: str) -> None:
    chat_format = choose_chat_format(TemplateSources("test", "llama", renderer=find_renderer(name, 10**9)))
    if "thinking" not in chat_format.capabilities:
        return
    parser = chat_format.parser(chat_format.render([{"role": "user", "content": "x"}], think=True))
    lead = parser.lead
    assert lead is not None
    begun = "" if lead.is_open else lead.opening
    pieces = parser.feed(f"{begun}I wonder{chat_format.end_of_thought(lead)}Yes") + parser.flush()
    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == "Yes"
    assert name != "harmony" or chat_format.end_of_thought(lead) == HARMONY_END
