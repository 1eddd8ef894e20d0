"""Images in templates that read lists of parts: they stand where the template writes them."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.chat.formats import JinjaFormat
from chaski.chat.layout import shown_placeholders
from chaski.text.template.chat import ChatTemplate

# As SmolVLM's: what comes behind the name depends on the first part.
SOURCE = """{% for message in messages %}{{ message.role }}
{{- ':' if message.content[0].type == 'image' else ': ' }}
{%- for part in message.content %}
{%- if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}.
{% endfor %}"""
# One that shows images of the user only.
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
