"""Conversations that a template refuses unchanged are rewritten in fewer and simpler turns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chaski.errors import TemplateError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.turns import alternating

Conversation = list[dict[str, Any]]

# Written by hand, similar to the makers' templates.
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "({{ m.role }}|{{ m.content }}){% endfor %}"
)
SYSTEM_FIRST = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}<<{{ messages[0].content }}>>"
    "{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('After the optional system message, roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %}{{ m.content }}</s>{% endif %}"
    "{% endfor %}"
)
WITH_TOOLS = (
    "{% set ns = namespace(index=0) %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}"
    "{% if m.role == 'system' %}{{ raise_exception('Only user, assistant and tool roles') }}{% endif %}"
    "({{ m.role }}|{{ m.content }}{% for c in m.tool_calls or [] %}!{{ c.function.name }}"
    "{{ c.function.arguments.values() | join }}{% endfor %}){% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + ALTERNATING
)
WANTS_A_QUESTION = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% for m in messages %}({{ m.role }}|{{ m.content }}){% endfor %}"
)
FREE = "{% for m in messages %}({{ m.role }}|{{ m.content }}){% endfor %}"

_ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def conversation(text: str) -> Conversation:
    """Return `u:hi a:yo` as messages; `a!f` is an assistant's turn that calls f."""
    found = []
    for word in text.split():
        role, sign, said = word[0], word[1], word[2:]
        message: dict[str, Any] = {"role": _ROLES[role], "content": said if sign == ":" else ""}
        found.append(
            message | ({"tool_calls": [{"function": {"name": said, "arguments": {}}}]} if sign == "!" else {})
        )
    return found


@pytest.mark.parametrize(
    ("template", "said", "written"),
    [
        (ALTERNATING, "u:1 a:2 u:3", "(user|1)(assistant|2)(user|3)"),
        (ALTERNATING, "u:1 u:2", "(user|1\n\n2)"),
        (ALTERNATING, "u:1 a:2 a:3 u:4", "(user|1)(assistant|2\n\n3)(user|4)"),
        (ALTERNATING, "a:1 u:2", "(user|)(assistant|1)(user|2)"),
        (ALTERNATING, "s:0 u:1", "(user|0\n\n1)"),
        (ALTERNATING, "s:0 a:1 u:2", "(user|0)(assistant|1)(user|2)"),
        (SYSTEM_FIRST, "s:0 u:1", "<<0>>[INST] 1 [/INST]"),
        (SYSTEM_FIRST, "s:0 s:9 u:1", "<<0\n\n9>>[INST] 1 [/INST]"),
        (SYSTEM_FIRST, "u:1 s:0 a:2", "[INST] 1\n\n0 [/INST]2</s>"),
        (SYSTEM_FIRST, "u:1 a:2 s:0 u:3", "[INST] 1 [/INST]2</s>[INST] 0\n\n3 [/INST]"),
        (SYSTEM_FIRST, "s:0 a:1 u:2", "<<0>>[INST]  [/INST]1</s>[INST] 2 [/INST]"),
        (SYSTEM_FIRST, "s:0", "<<0>>"),
        (NO_SYSTEM, "s:0 u:1 a:2", "(user|0\n\n1)(assistant|2)"),
        (NO_SYSTEM, "s:0 s:9 u:1 u:2", "(user|0\n\n9\n\n1\n\n2)"),
        (WITH_TOOLS, "u:1 a!f t:2 a:3", "(user|1)(assistant|!f)(tool|2)(assistant|3)"),
        (WITH_TOOLS, "u:1 a!f a!g t:2 t:3", "(user|1)(assistant|!f)(assistant|!g)(tool|2)(tool|3)"),
        (WITH_TOOLS, "s:0 u:1 a!f t:2 u:3 u:4", "(user|0\n\n1)(assistant|!f)(tool|2\n\n3\n\n4)"),
        (WANTS_A_QUESTION, "s:0 a:1", "(system|0)(user|)(assistant|1)"),
        (FREE, "a:1 u:2 u:3 s:4 s:5", "(assistant|1)(user|2)(user|3)(system|4)(system|5)"),
    ],
)  # fmt: skip
def test_turns_are_merged_where_a_template_refuses_them(template: str, said: str, written: str) -> None:
    assert ChatTemplate(template, "<s>", "</s>").render(conversation(said)) == written


def test_what_is_refused_in_every_form_is_refused_in_the_template_s_words() -> None:
    never = ChatTemplate("{{ raise_exception('never with ' ~ messages[-1].content) }}", "", "")
    with pytest.raises(
        TemplateError, match=re.escape("does not accept this conversation: never with 2")
    ) as found:
        never.render(conversation("u:1 u:2"))
    assert type(found.value) is TemplateError
    broken = ChatTemplate(
        "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}"
        "{{ messages[0].content + 1 }}",
        "", "",
    )  # fmt: skip
    with pytest.raises(TemplateError, match="one only"):
        broken.render(conversation("u:1 u:2"))


def test_what_a_message_has_besides_is_kept() -> None:
    image = {"type": "image"}
    messages: Conversation = [
        {"role": "assistant", "content": "", "reasoning_content": "a", "name": "x"},
        {"role": "assistant", "content": "b", "reasoning_content": "c", "name": "y"},
        {"role": "user", "content": [image]},
        {"role": "user", "content": "see"},
    ]
    empty, said, seen = alternating(messages)
    assert empty == {"role": "user", "content": ""}
    assert said == {
        "role": "assistant",
        "content": "b",
        "reasoning_content": "a\n\nc",
        "name": "x",
    }
    assert seen["content"] == [image, {"type": "text", "text": "see"}]


def test_a_conversation_that_is_strict_already_has_no_other_form() -> None:
    strict = conversation("u:1 a:2 u:3")
    assert alternating(strict) == strict
