"""Chat templates render as in transformers, and see only plain data."""

from __future__ import annotations

import re
import threading
from datetime import datetime

import pytest

from chaski.chat.choice import choose_chat_format
from chaski.chat.sources import TemplateSources
from chaski.errors import TemplateError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.plain import PlainTemplate

USER = [{"role": "user", "content": "Hi"}]
CHAT = [
    {"role": "system", "content": " Be <brief> & kind. "},
    {"role": "user", "content": "What's 1 + 1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Ünïcödé\n"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells <b>the</b> weather, né?",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]

BRACKETS = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '[SYS]' ~ message['content'] | trim ~ '[/SYS]' }}
    {%- elif message['role'] == "user" %}
        {{- '[USER]' + message.content + '[/USER]' }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[BOT]' }}{% endif %}
"""
BLOCKS = """{% for message in messages %}
    {% set head = '<' ~ message.role ~ '>' %}
    {% if loop.first and message.role != 'system' %}
<system>default</system>
    {% endif %}
    {% if message.role == 'assistant' %}
{{ head }}{% generation %}{{ message.content }}{% endgeneration %}
    {% else %}
{{ head }}{{ message.content }}
    {% endif %}
{% endfor %}
"""
TOOL_LIST = """{% if tools is not none and tools | length > 0 %}
{% set ns = namespace(names=[]) %}
{% for tool in tools %}{% set ns.names = ns.names + [tool.function.name] %}{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}{% endfor %}
{{ ns.names | join(', ') }}{% else %}none{% endif %}"""


def render(source, messages=USER, **options):
    return ChatTemplate(source, "<s>", "</s>").render(messages, **options)


class TestRendering:
    def test_brackets(self):
        expected = "<s>[SYS]Be <brief> & kind.[/SYS][USER]What's 1 + 1?[/USER]2</s>[USER]Ünïcödé\n[/USER]"
        assert render(BRACKETS, CHAT) == expected + "[BOT]"
        assert render(BRACKETS, CHAT, add_generation_prompt=False) == expected

    def test_block_lines_vanish(self):
        """With trim_blocks and lstrip_blocks, spaces before a block and the newline after it are not text."""
        chat = [CHAT[1], CHAT[2]]
        assert render(BLOCKS, chat) == "<system>default</system>\n<user>What's 1 + 1?\n<assistant>2"

    def test_tools(self):
        text = render(TOOL_LIST, tools=TOOLS)
        assert text.startswith(
            '{"type": "function", "function": {"name": "weather", "description": "Tells <b>the</b>'
        )
        assert 'né?"' in text
        assert '\n{\n  "name": "weather",\n' in text
        assert text.endswith("\n}weather")
        assert render(TOOL_LIST) == "none"

    def test_tools_under_the_name_that_smollm3_reads(self):
        source = "{% if xml_tools %}{{ xml_tools[0].function.name }}{% endif %}"
        assert (render(source, tools=TOOLS), render(source)) == ("weather", "")
        assert render(source, tools=TOOLS, xml_tools=[]) == ""
        found = choose_chat_format(TemplateSources("a model", "", source + "{{ messages[0].content }}"))
        assert found.capabilities == ("tools",)

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("{{ messages[0]['content'] }}{{ messages[0].role }}{{ messages[-1].nothing }}", "Hiuser"),
            (
                "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% "
                "break %}{% endif %}{{ i }}{% endfor %}",
                "02",
            ),
            (
                "{{ 'a,b'.split(',')[1] }}{{ ' x '.strip() }}{{ 'abc'[1:] }}{{ 'abc'[::-1] }}"
                "{{ [1, 2, 3][-2:] }}",
                "bxbccba[2, 3]",
            ),
            (
                "{{ '{} {x:>4}'.format(1, x='é') }}|{{ '%s-%03d' % ('a', 7) }}|{{ '%s' | format(3) }}",
                "1    é|a-007|3",
            ),
            (
                "{{ ['a', 1, none] | join('-') }} {{ ['b', 'a'] | sort | join }} {{ [{'n': 1}"
                ", {'n': 2}] | join('/', attribute='n') }}",
                "a-1-None ab 1/2",
            ),
            (
                "{{ 'x.y' | replace('.', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ ', "
                "'.join(['a', 'b']) }}",
                "x--y bba a, b",
            ),
            ("{{ 'a\\nb' | indent(2) }} {{ '7'.zfill(3) }} {{ 'x'.center(3) }}", "a\n  b 007  x "),
            (
                "{{ messages | map(attribute='role') | list }} {{ messages | "
                "selectattr('role', 'equalto', 'user') | list | length }}",
                "['user'] 1",
            ),
            (
                "{{ {'b': 1, 'a': [true, none]} | tojson }} {{ {'b': 1, 'a': 2} | dictsort }}",
                "{\"b\": 1, \"a\": [true, null]} [('a', 2), ('b', 1)]",
            ),
            (
                "{{ '<&\"é' | tojson }} {{ 'é' | tojson(ensure_ascii=True) }} {{ '<' | safe }} {{ '<' | e }}",
                '"<&\\"é" "\\u00e9" < &lt;',
            ),
            (
                "{{ x is defined }} {{ messages is iterable }} {{ none is none }} {{ 'a' is "
                "string }} {{ 3 is divisibleby(3) }} {{ {} is mapping }}",
                "False True True True True True",
            ),
            (
                "{{ 2 ** 10 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 1 + 1.5 }} {{ [1] + [2] }} {{ "
                "'ab' * 2 }} {{ 1 if false }}",
                "1024 3 3 2.5 [1, 2] abab ",
            ),
            ("{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m('x', b='y') }}", "12xy"),
            ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{% endcall %}", "<in>"),
            (
                "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}up{% endfilter %}{% "
                "with y = 3 %}{{ y }}{% endwith %}",
                "a1UP3",
            ),
            (
                "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% "
                "set j = joiner() %}{{ j() }}{{ j() }}",
                "aba, ",
            ),
            (
                "{{ dict(a=1).items() | list }}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
                "[('a', 1)]x1",
            ),
            (
                "{{ 3.14159 | round(2) }} {{ '12' | int + 1 }} {{ [1, 2] | sum }} {{ none | "
                "default('d', true) }} {{ 'aB' | title }}",
                "3.14 13 3 d Ab",
            ),
            ("{% for x in [[1, [2]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "12"),
            ("{% raw %}{{ not }}{% endraw %}{# comment #}", "{{ not }}"),
        ],
    )
    def test_language(self, source, expected):
        assert render(source) == expected

    def test_extra_variables(self):
        assert render("{{ enable_thinking }} {{ documents }}", enable_thinking=False) == "False None"

    def test_date(self):
        assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}

    def test_threads_do_not_mix(self):
        template = ChatTemplate("{% for m in messages %}{{ m.content }};{% endfor %}", "", "")
        wrong = []

        def work(name):
            for _ in range(50):
                text = template.render([{"role": "user", "content": name}] * 20)
                wrong.extend([text] if text != f"{name};" * 20 else [])

        threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestErrors:
    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("{% if %}", "TemplateSyntaxError"),
            ("{{ 'a' | nonsense }}", "No filter named 'nonsense'"),
            (
                "{{ raise_exception('roles must alternate') }}",
                "does not accept this conversation: roles must alternate",
            ),
            ("{{ missing.attribute }}", "UndefinedError: 'missing' is undefined"),
            ("{{ 1 / 0 }}", "ZeroDivisionError"),
            ("{{ 'a' + 1 }}", "TypeError"),
            ("{% include '/etc/passwd' %}", "no loader"),
            ("{% import 'os' as os %}", "no loader"),
            ("{{ messages.extend([1]) }}", "SecurityError"),
            ("{{ messages.append(messages) }}", "appends a value that is not a text"),
            ("{{ messages[0].update(role='x') }}", "SecurityError"),
            ("{{ ''.__class__.__mro__ }}", "SecurityError"),
            ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
            ("{{ ('' | attr('__class__')).x }}", "SecurityError"),
            ("{{ '{0.__class__.x}'.format(1) }}", "SecurityError"),
            ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "underscores are private"),
            ("{{ 'a'.encode() }}", "SecurityError"),
            ("{{ lipsum() }}", "'lipsum' is undefined"),
            ("x" * 200_000, "has 200000 characters"),
        ],
    )
    def test_of_templates(self, source, says):
        with pytest.raises(TemplateError, match=re.escape(says)):
            render(source)

    @pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}, print])
    def test_only_plain_data_gets_in(self, value):
        with pytest.raises(TemplateError, match="plain data, not"):
            render("{{ x }}", x=[value])

    def test_subclasses_are_made_plain(self):
        class Leaky(str):
            secret = "secret"

        assert render("{{ x }}{{ x.secret }}", x=Leaky("a")) == "a"


class TestPlain:
    def test_one_message_is_the_text(self):
        assert PlainTemplate().render(USER) == "Hi"

    def test_messages_have_a_blank_line_between(self):
        assert PlainTemplate().render(CHAT[1:3]) == "What's 1 + 1?\n\n2"

    def test_refusals(self):
        with pytest.raises(TemplateError, match="tools"):
            PlainTemplate().render(USER, tools=TOOLS)
        with pytest.raises(TemplateError, match="text as content"):
            PlainTemplate().render([{"role": "user", "content": [{"type": "image"}]}])


@pytest.mark.oracle
@pytest.mark.parametrize("source", [BRACKETS, BLOCKS, TOOL_LIST])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("generate", [True, False])
def test_transformers_renders_the_same(source, tools, generate):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    texts, _ = utils.render_jinja_template(
        [CHAT],
        tools=tools,
        chat_template=source,
        add_generation_prompt=generate,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert render(source, CHAT, tools=tools, add_generation_prompt=generate) == texts[0]


class TestTwoTemplates:
    """A model may have one template for conversations, and one for those with tools."""

    TEMPLATE = ChatTemplate(
        "{{ messages[0].content }}", "", "", tool_use="{{ tools | length }} tools {{ more }}"
    )

    def test_tools_decide(self) -> None:
        assert self.TEMPLATE.render(USER) == "Hi"
        assert self.TEMPLATE.render(USER, tools=[]) == "Hi"
        assert self.TEMPLATE.render(USER, tools=TOOLS) == "1 tools "

    def test_variables_are_those_of_both(self) -> None:
        assert self.TEMPLATE.variables == {"messages", "tools", "more"}

    def test_both_must_be_templates(self) -> None:
        with pytest.raises(TemplateError):
            ChatTemplate("{{ messages }}", "", "", tool_use="{{ messages")


PARTS = """{% for message in messages %}<{{ message.role }}>
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}<picture>{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}</>
{%- endfor %}"""
PARTS_BY_TYPE = PARTS.replace("{% else %}", "{% elif part['type'] == 'text' %}")
EITHER = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}"
    "{% else %}{{ message.content[0].text }} in parts{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("source", [PARTS, PARTS_BY_TYPE])
def test_a_text_is_a_part_where_the_template_reads_parts_only(source: str) -> None:
    template = ChatTemplate(source, "<s>", "</s>")
    assert template.render(CHAT[1:3]) == "<user>What's 1 + 1?</><assistant>2</>"
    assert template.render([{"role": "user", "content": ""}]) == "<user></>"
    parts = [{"type": "image"}, {"type": "text", "text": "Who?"}]
    assert template.render([{"role": "user", "content": parts}, *USER]) == "<user><picture>Who?</><user>Hi</>"


def test_a_text_is_a_text_where_the_template_reads_both() -> None:
    assert ChatTemplate(EITHER, "", "").render(USER) == "Hi"


@pytest.mark.parametrize(("source", "expected"), [(PARTS, "<picture>"), (EITHER, None), (BRACKETS, None)])
def test_what_stands_for_an_image(source: str, expected: str | None) -> None:
    assert ChatTemplate(source, "", "").image_text == expected
