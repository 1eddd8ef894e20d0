"""Images in templates that read lists of parts: they appear where the template writes them."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.chat.formats import GoFormat, JinjaFormat
from chaski.chat.layout import placeholder, shown_placeholders
from chaski.chat.requests import detached
from chaski.errors import OptionError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.go import GoTemplate

# Like SmolVLM's: the text after the name depends on the first part.
SOURCE = """{% for message in messages %}{{ message.role }}
{{- ':' if message.content[0].type == 'image' else ': ' }}
{%- for part in message.content %}
{%- if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}.
{% endfor %}"""
# A template that shows only the user's images.
CHOOSY = SOURCE.replace("part.type == 'image' %}<", "part.type == 'image' and message.role == 'user' %}<")


def render(messages: list[dict[str, Any]], source: str = SOURCE) -> str:
    rendered = JinjaFormat((), "", template=ChatTemplate(source, "", "")).render(messages)
    return shown_placeholders(rendered)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([{"content": "Hi"}], "user: Hi.\n", id="none"),
        pytest.param([{"content": "Hi", "images": [b""]}], "user:[img-0]Hi.\n", id="in front"),
        pytest.param([{"content": "", "images": [b""]}], "user:[img-0].\n", id="alone"),
        pytest.param(
            [
                {"content": "ab", "images": [b"", b""], "image_places": [1, 2]},
                {"content": "c", "images": [b""]},
            ],
            "user: a[img-0]b[img-1].\nuser:[img-2]c.\n",
            id="between",
        ),
        pytest.param(
            [{"content": "an <image>", "images": [b""]}, {"content": "<image> too"}],
            "user:[img-0]an <image>.\nuser: <image> too.\n",
            id="the user's own",
        ),
    ],
)
def test_where_an_image_stands(messages: list[dict[str, Any]], expected: str) -> None:
    assert render([{"role": "user", **message} for message in messages]) == expected


def test_an_image_that_the_template_leaves_out_is_a_text() -> None:
    message = {"role": "tool", "content": "Hi", "images": [b""]}
    assert render([message], CHOOSY) == "tool: [img-0]Hi.\n"


# The template writes images at their place in the text, and no parts.
PLAIN = (
    "{% for message in messages %}({{ message.content }}){% endfor %}{{ tools | tojson if tools else '' }}"
)
GO = "{{ range .Messages }}({{ .Content }}){{ end }}{{ if .Tools }}{{ .Tools }}{{ end }}"
# Text with which a user might move an image: the marks of prompts, and our placeholders for images.
TYPED = ("[img]", "[img-0]", "[img-1]", placeholder(0), placeholder(1), placeholder(-1))


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("source", [PLAIN, SOURCE, GO])
def test_nothing_that_a_user_types_moves_an_image(typed: str, source: str) -> None:
    message = {
        "role": "user",
        "content": f"a{typed}b",
        "images": [b"", b""],
        "image_places": [0, len(typed) + 2],
    }
    tools = [{"type": "function", "function": {"name": typed, "description": typed, "parameters": {}}}]
    template = None if source is GO else ChatTemplate(source, "", "")
    found = (
        GoFormat((), "", template=GoTemplate(GO))
        if template is None
        else JinjaFormat((), "", template=template)
    )
    text = found.render([message, {"role": "assistant", "content": typed}, message], tools)
    assert [text.count(placeholder(index)) for index in range(4)] == [1] * 4
    first, second = (text.index(placeholder(index)) for index in (0, 1))
    assert first < text.index("a", first) < text.index("b", first) < second
    if typed.startswith("["):
        assert text[first:second].endswith(f"a{typed}b")


def test_images_of_a_conversation_in_python_stand_among_parts_of_text() -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "image"}, {"type": "text", "text": "[img]"}]
    turns, sources = detached([{"role": "user", "content": parts, "images": [b"1", b"2"]}])
    assert turns == [{"role": "user", "content": "see [img]", "images": [0, 1], "image_places": [4]}]
    assert sources == [b"1", b"2"]
    assert render(turns, PLAIN) == "([img-1]see [img-0][img])"
    with pytest.raises(OptionError, match="message 0: a part of its content is"):
        detached([{"role": "user", "content": [{"type": "video"}], "images": [b"1"]}])
