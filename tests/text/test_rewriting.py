"""Histories with calls that a template refuses or loses are rewritten for it, all turns in the same way.

The templates are written by hand; each has the restrictions of some family's published templates.
"""

from __future__ import annotations

import re
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest

from chaski.errors import TemplateError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.meter import RenderLimits

Messages = list[dict[str, Any]]

_CALLS = (
    "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
)
_TURN = "({{ m.role }}|{{ m.content }}" + _CALLS + ")"


def looped(body: str, turn: str = _TURN) -> str:
    return "{% for m in messages %}" + body + turn + "{% endfor %}"


# Like Mistral's: ids of nine characters, alternating roles, no user text after a result.
NINE = looped(
    "{% for c in m.tool_calls or [] %}{% if c.id is undefined or c.id | length != 9 %}"
    "{{ raise_exception('ids of length 9') }}{% endif %}#{{ c.id }}{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id is undefined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids of length 9') }}{% endif %}#{{ m.tool_call_id }}{% endif %}"
)
# Like Llama's: one call per turn.
SINGLE = looped(
    "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one at once') }}{% endif %}"
)
# Like GigaChat's: further calls are lost.
FIRST_ONLY = looped("", _TURN.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:1]"))
# Like gpt-oss's: a call cannot have both text and thought.
NOT_BOTH = looped(
    "{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}"
    "{% if m.tool_calls %}~{{ m.thinking }}{% endif %}"
)
# Like Command R7B's: users and assistants alternate, whatever the system says in between.
ALTERNATES = "{% set ns = namespace(user=true) %}" + looped(
    "{% if m.role in ('user', 'assistant') %}{% if (m.role == 'user') != ns.user %}"
    "{{ raise_exception('alternate') }}{% endif %}{% set ns.user = not ns.user %}{% endif %}"
)
# Like GLM 4's: the name of a call is `metadata`, and results have a role of their own.
METADATA = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'observation') %}<|{{ m.role }}|>"
    "{{ m.metadata }}\n{{ m.content }}{% endif %}{% endfor %}"
)
# Like Kimi K2's: a call is written only by its id.
BY_ID = looped(
    "",
    "({{ m.role }}|{{ m.content }}{% for c in m.tool_calls or [] %}!{{ c.id }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }})",
)
# Like Solar's: a result must have an id.
NEEDS_IDS = looped("{% if m.role == 'tool' %}#{{ m.tool_call_id + '' }}{% endif %}")
# Each of the next three accepts all other conversations unchanged, and shows the ids of calls.
_IDS = (
    "{% for c in m.tool_calls or [] %}#{{ c.id }}{% endfor %}"
    "{% if m.role == 'tool' %}#{{ m.tool_call_id }}{% endif %}"
)
NEEDS_ID_OF_CALL = looped(
    "{% for c in m.tool_calls or [] if not c.id %}{{ raise_exception('no id') }}{% endfor %}" + _IDS
)
NO_TEXT = looped(
    "{% if m.tool_calls and m.content %}{{ raise_exception('text beside a call') }}{% endif %}" + _IDS
)
NO_NEIGHBOURS = looped(
    "{% if m.role == 'assistant' and loop.previtem and loop.previtem.role == 'assistant' %}"
    "{{ raise_exception('two turns of the assistant') }}{% endif %}" + _IDS
)
# Like Qwen's coders: arguments are read as a mapping.
MAPPING = looped("", _TURN.replace("c.function.arguments | tojson", "c.function.arguments.items() | list"))
# Like functionary's: arguments are text.
TEXT = looped("", _TURN.replace("c.function.arguments | tojson", "'' + c.function.arguments"))
# Like SmolLM's and LFM2's: calls are not written.
NO_CALLS = looped("", "({{ m.role }}|{{ m.content }})")
# Like Gemma 2's: only two alternating roles.
TWO_ROLES = looped(
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}",
    "({{ m.role }}|{{ m.content }})",
)
# Like Bielik's: later system messages, and developer messages, are lost.
LOSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% endif %}"
    "{% for m in messages if m.role in ('user', 'assistant', 'tool') %}" + _TURN + "{% endfor %}"
)
# Like DeepSeek R1's: of several system messages, only the last one stays.
LAST_SYSTEM = (
    "{% set n = namespace(s='') %}{% for m in messages if m.role == 'system' %}{% set n.s = m.content %}"
    "{% endfor %}"
    "<{{ n.s }}>{% for m in messages if m.role != 'system' %}" + _TURN + "{% endfor %}"
)
ALL = {
    "nine": NINE,
    "single": SINGLE,
    "first only": FIRST_ONLY,
    "not both": NOT_BOTH,
    "alternates": ALTERNATES,
    "metadata": METADATA,
    "by id": BY_ID,
    "needs ids": NEEDS_IDS,
    "needs the id of a call": NEEDS_ID_OF_CALL,
    "no text": NO_TEXT,
    "no neighbours": NO_NEIGHBOURS,
    "mapping": MAPPING,
    "text": TEXT,
    "no calls": NO_CALLS,
    "two roles": TWO_ROLES,
    "loses system": LOSES_SYSTEM,
    "last system": LAST_SYSTEM,
}


def called(name: str, call_id: str = "", **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], content: str = "", thinking: str = "") -> dict[str, Any]:
    thought = {"thinking": thinking, "reasoning_content": thinking} if thinking else {}
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **thought}


def result(content: str, call_id: str = "") -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({"tool_call_id": call_id} if call_id else {})


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def written(source: str, messages: Messages) -> str:
    return ChatTemplate(source, "", "").render(messages)


ASK, YES, MORE = said("user", "ask"), said("assistant", "yes"), said("user", "more")
ONE_CALL = [ASK, calling(called("f", "call_1a2b3c4d", x=1)), result("r", "call_1a2b3c4d"), YES, MORE]
TWO_CALLS = [
    ASK,
    calling(called("f", "call_a", x=1), called("g", "call_b", y=2), content="so", thinking="hm"),
    result("rg", "call_b"),
    result("rf", "call_a"),
    YES,
    MORE,
]


@pytest.mark.parametrize("call_id", ["call_1a2b3c4d", "toolu_01A09q90qw90lq917835lq9", "abcdefghi", "é", ""])
def test_ids_are_nine_letters_and_digits_in_call_and_result(call_id: str) -> None:
    text = written(NINE, [ASK, calling(called("f", call_id)), result("r", call_id), YES])
    _, mine, theirs = text.split("#")
    assert mine[:9] == theirs[:9]
    assert re.match("[A-Za-z0-9]{9}", mine)
    assert mine[:9] == call_id or call_id != "abcdefghi"


def test_ids_do_not_depend_on_what_is_before() -> None:
    alone = written(NINE, ONE_CALL)
    assert alone in written(NINE, [said("user", "first"), YES, *ONE_CALL])


@pytest.mark.parametrize("source", [SINGLE, FIRST_ONLY])
def test_each_call_has_a_turn_that_its_result_follows(source: str) -> None:
    assert written(source, TWO_CALLS) == (
        '(user|ask)(assistant|so!f{"x": 1})(tool|rf)(assistant|!g{"y": 2})(tool|rg)(assistant|yes)(user|more)'
    )


def test_results_without_ids_belong_to_calls_in_order() -> None:
    calls = calling(called("f"), called("g"))
    text = written(SINGLE, [ASK, calls, result("1"), result("2"), result("3"), YES])
    assert text == "(user|ask)(assistant|!f{})(tool|1)(assistant|!g{})(tool|2)(tool|3)(assistant|yes)"
    assert written(SINGLE, [ASK, calls]) == "(user|ask)(assistant|!f{})(assistant|!g{})"


def test_text_stands_before_a_thought_and_a_call() -> None:
    history = [ASK, calling(called("f"), content="so", thinking="hm"), result("r"), YES]
    assert written(NOT_BOTH, history) == "(user|ask)(assistant|so)~hm(assistant|!f{})(tool|r)(assistant|yes)"
    plain = [ASK, calling(called("f"), content="so"), result("r"), YES]
    assert written(NOT_BOTH, plain) == "(user|ask)~(assistant|so!f{})(tool|r)(assistant|yes)"


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (
            NEEDS_ID_OF_CALL,
            [ASK, calling(called("f", "call_long"), called("g")), result("1", "call_long"), result("2")],
            "(user|ask)#call_long#call00001(assistant|!f{}!g{})#call_long(tool|1)#call00001(tool|2)",
        ),
        (
            NO_TEXT,
            [ASK, calling(called("f", "call_long"), called("g", "call_other"), content="so")],
            "(user|ask)(assistant|so)#call_long#call_other(assistant|!f{}!g{})",
        ),
        (
            NO_NEIGHBOURS,
            [ASK, said("assistant", "so"), calling(called("f", "call_long"), called("g", "call_other"))],
            "(user|ask)#call_long#call_other(assistant|so!f{}!g{})",
        ),
    ],
)
def test_nothing_else_is_changed(source: str, messages: Messages, expected: str) -> None:
    assert written(source, messages) == expected


def test_results_without_ids_belong_to_calls_of_their_names() -> None:
    results = [{**result(f"of {name}"), "name": name} for name in ("g", "f")]
    text = written(NEEDS_IDS, [ASK, calling(called("f"), called("g")), *results])
    assert text == "(user|ask)(assistant|!f{}!g{})#call00001(tool|of g)#call00000(tool|of f)"


def test_an_id_names_the_function_where_only_ids_are_written() -> None:
    assert written(BY_ID, TWO_CALLS) == (
        '(user|ask)(assistant|so!functions.f:0{"x": 1}!functions.g:1{"y": 2})'
        "(tool|rgfunctions.g:1)(tool|rffunctions.f:0)(assistant|yes)(user|more)"
    )


def test_results_get_the_ids_of_their_calls() -> None:
    text = written(NEEDS_IDS, [ASK, calling(called("f"), called("g")), result("1"), result("2"), YES])
    assert text == "(user|ask)(assistant|!f{}!g{})#call00000(tool|1)#call00001(tool|2)(assistant|yes)"
    assert "#call_1a2b3c4d(tool|r)" in written(NEEDS_IDS, ONE_CALL)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (SINGLE, '!f"{\\"x\\": br"'),
        (MAPPING, "!f[('arguments', '{\"x\": br')]"),
        (TEXT, '!f{"x": br'),
    ],
)
def test_broken_arguments_are_text(source: str, shown: str) -> None:
    broken = {"type": "function", "id": "a", "function": {"name": "f", "arguments": '{"x": br'}}
    assert shown in written(source, [ASK, calling(broken), result("r", "a"), YES])


def test_arguments_are_json_where_a_template_wants_text() -> None:
    assert '!f{"x": 1}' in written(TEXT, ONE_CALL)


def test_calls_are_words_where_a_template_writes_none() -> None:
    assert '(assistant|{"name": "f", "arguments": {"x": 1}})(tool|r)' in written(NO_CALLS, ONE_CALL)
    tagged = ChatTemplate(NO_CALLS, "", "", call_tags=("<call>", "</call>"))
    assert '(assistant|<call>{"name": "f", "arguments": {"x": 1}}</call>)' in tagged.render(ONE_CALL)
    listed = ChatTemplate(NO_CALLS, "", "", call_tags=("<calls>", ""))
    assert '(assistant|so<calls>[{"name": "f", "arguments": {"x": 1}}, {"name": "g"' in listed.render(
        TWO_CALLS
    )
    assert written(TWO_ROLES, ONE_CALL) == (
        '(user|ask)(assistant|{"name": "f", "arguments": {"x": 1}})(user|r)(assistant|yes)(user|more)'
    )


def test_a_name_is_metadata_where_a_template_reads_it() -> None:
    assert written(METADATA, TWO_CALLS) == (
        '<|user|>\nask<|assistant|>\nso<|assistant|>f\n{"x": 1}<|assistant|>g\n{"y": 2}'
        "<|observation|>\nrg<|observation|>\nrf<|assistant|>\nyes<|user|>\nmore"
    )


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_later_message_of_the_system_stays_in_its_place(role: str) -> None:
    history = [said("system", "be kind"), ASK, YES, said(role, "be brief"), MORE]
    for source in (LOSES_SYSTEM, LAST_SYSTEM):
        text = written(source, history)
        assert text == "<be kind>(user|ask)(assistant|yes)(user|be brief)(user|more)"
    assert written(TWO_ROLES, history) == "(user|be kind\n\nask)(assistant|yes)(user|be brief\n\nmore)"


def test_the_developer_speaks_for_the_system_where_it_is_not_known() -> None:
    assert written(LOSES_SYSTEM, [said("developer", "be kind"), ASK]) == "<be kind>(user|ask)"
    assert written(SINGLE, [said("developer", "be kind"), ASK]) == "(developer|be kind)(user|ask)"


# All kinds of messages, in an order that all templates can write.
GROWING: Messages = [
    said("system", "sys"),
    said("user", "one"),
    calling(called("f", "call_a", x=1), content="so"),
    result("ra", "call_a"),
    said("assistant", "two"),
    said("user", "three"),
    calling(called("f", "toolu_b"), called("g", "toolu_c"), thinking="hm"),
    result("rc", "toolu_c"),
    result("rb", "toolu_b"),
    said("assistant", "four"),
    said("system", "late"),
    said("assistant", "five"),
    said("user", "six"),
    calling(
        {"type": "function", "id": "d", "function": {"name": "f", "arguments": "{br"}},
        content="t",
        thinking="u",
    ),
    result("rd", "d"),
    said("assistant", "seven"),
    said("developer", "later"),
]


@pytest.mark.parametrize("name", ALL)
def test_text_of_earlier_turns_stays_the_same(name: str) -> None:
    """The prefix cache needs this: the prompt of an answer is a prefix of the prompts of later answers."""
    template = ChatTemplate(ALL[name], "", "")
    asked = [end for end, turn in enumerate(GROWING) if turn["role"] == "assistant"]
    texts = [template.render(GROWING[:end]) for end in (*asked, len(GROWING))]
    for shorter, longer in pairwise(texts):
        assert longer.startswith(shorter)
    for word in ("sys", "one", "so", "ra", "two", "rb", "rc", "four", "late", "br", "rd", "seven", "later"):
        assert word in texts[-1], word


@pytest.mark.parametrize("name", ALL)
def test_a_conversation_that_is_taken_stays_as_it_is(name: str) -> None:
    plain = [said("user", "one"), said("assistant", "two"), said("user", "three")]
    renders = ChatTemplate(ALL[name], "", "")
    assert renders.render(plain) == renders.probing()(plain, None)


def test_hostile_templates_take_the_time_of_one_rendering() -> None:
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate("{{ raise_exception('no') }}" + slow, "", "", RenderLimits(seconds=0.2))
    with pytest.raises(TemplateError, match="no"):
        template.render(TWO_CALLS)
    late = ChatTemplate("{% for i in range(99999) %}{% for j in range(9) %}{% endfor %}{% endfor %}"
                        "{{ raise_exception('no') }}", "", "", RenderLimits(seconds=0.3))  # fmt: skip
    start = monotonic()
    with pytest.raises(TemplateError):
        late.render(TWO_CALLS)
    assert monotonic() - start < 3


def test_lists_of_a_template_grow_by_texts() -> None:
    filled = "{% set q = [] %}{% for m in messages %}{% set _ = q.append(m.role) %}{% endfor %}"
    source = filled + "{{ q.pop(0) }}{{ q }}"
    assert written(source, [ASK, YES]) == "user['assistant']"
    with pytest.raises(TemplateError, match="appends a value that is not a text"):
        written("{% set q = [] %}{% set _ = q.append(q) %}{{ q }}", [ASK])


# Like Gemma 4's: results are written with their calls.
WITH_CALLS = (
    "{% for m in messages if m.role != 'tool' %}" + _TURN + "{% if m.tool_calls %}"
    "{% for r in messages[loop.index0 + 1:] if r.role == 'tool' %}={{ r.content }}{% endfor %}{% endif %}"
    "{% endfor %}"
)
# Like Nemo's: the system's text is written with the user's.
WITH_USER = (
    "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' and messages[0].role == 'system' %}"
    "<{{ messages[0].content }}>{% endif %}" + _TURN + "{% endfor %}"
)


def test_a_result_without_its_call_is_said_by_the_user() -> None:
    assert written(WITH_CALLS, [ASK, result("r"), YES]) == "(user|ask)(user|r)(assistant|yes)"
    assert written(WITH_CALLS, [ASK, calling(called("f")), result("r"), YES]) == (
        "(user|ask)(assistant|!f{})=r(assistant|yes)"
    )


def test_the_system_alone_is_not_lost() -> None:
    assert written(WITH_USER, [said("system", "sys")]) == "<sys>(user|)"
    assert written(WITH_USER, [said("system", "sys"), ASK]) == "<sys>(user|ask)"


def test_tools_without_descriptions_get_empty_ones_where_a_template_needs_them() -> None:
    source = (
        "{% for t in tools or [] %}{{ t.function.name }}:{{ t.function.description | length }}"
        "{% for n, p in t.function.parameters.properties.items() %} {{ n }}={{ p.type }}"
        "{{ p.description | length }}{% endfor %};{% endfor %}{{ messages[0].content }}"
    )
    strict = ChatTemplate(
        source.replace("{{ p.description | length }}", "{{ p.description.upper() }}"), "<s>", "</s>"
    )
    tools: list[dict[str, Any]] = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}},
        },
        {"type": "function", "function": {"name": "g"}},
    ]
    said = [{"role": "user", "content": "hi"}]
    assert strict.render(said, tools=tools) == "f:0 a=integer;g:0;hi"
