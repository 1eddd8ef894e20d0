"""Hostile templates stop: in time, with little memory, from any thread, with a clear error."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest

from chaski.errors import TemplateError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.meter import RenderLimits, guarded

LIMITS = RenderLimits(seconds=0.2, characters=100_000, elements=10_000)
DOUBLING = "{% for i in range(60) %}"
MACROS = "".join(
    f"{{% macro m{i}() %}}{{{{ m{i - 1}() }}}}{{{{ m{i - 1}() }}}}{{% endmacro %}}" for i in range(1, 40)
)

BOMBS = {
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "ranges with text": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "loop conditions": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% "
    "endfor %}",
    "hidden literal": "{% set x %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
    "string times": "{{ 'a' * 10**9 }}",
    "times string": "{{ 1000000000 * 'a' }}",
    "list times": "{% set x = [0] * 10**9 %}",
    "power": "{% set x = 7 ** 999999999 %}",
    "square": "{% set n = namespace(x=3) %}" + DOUBLING + "{% set n.x = n.x * n.x %}{% endfor %}",
    "concatenation": "{% set n = namespace(x='a') %}" + DOUBLING + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "addition": "{% set n = namespace(x='a') %}" + DOUBLING + "{% set n.x = n.x + n.x %}{% endfor %}",
    "set block": "{% set n = namespace(x='a') %}"
    + DOUBLING
    + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "lists in lists": "{% set n = namespace(x=1) %}"
    + DOUBLING
    + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "tuples in tuples": "{% set n = namespace(x=1) %}"
    + DOUBLING
    + "{% set n.x = (n.x, n.x) %}{% endfor %}{{ n.x }}",
    "maps in maps": "{% set n = namespace(x=1) %}"
    + DOUBLING
    + "{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}{{ n.x }}",
    "dict calls": "{% set n = namespace(x=1) %}"
    + DOUBLING
    + "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "format method by item": "{{ 'x{:1000000000}'['format'](1) }}",
    "format method by filter": "{{ ('x{:1000000000}' | attr('format'))(1) }}",
    "format width argument": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "format operator": "{{ '%1000000000d' % 1 }}",
    "format operator argument": "{{ '%*d' % (1000000000, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(1000000) }}",
    "translate": "{{ ('a' * 99999).translate({97: 'x' * 99999}) }}",
    "replace method": "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "replace filter": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "join method": "{{ ('x' * 99999).join('y' * 99999) }}",
    "join of a generator": "{{ ('x' * 99999).join(range(9999) | map('string')) }}",
    "join filter": "{{ range(99999) | join('x' * 99999) }}",
    "indent": "{{ ('\n' * 99999) | indent('x' * 9999) }}",
    "indented json": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "sum of lists": "{{ [[1]] | sum(start=[]) }}",
    "huge hex number": "{{ ('f' * 99999) | int(0, 16) }}",
    "slow test in a filter": "{{ range(99999) | map('string') | select('in', 'b' * 99999) | list }}",
    "many copies": "{% set x = 'a' * 99999 %}" + "".join(f"{{% set a{i} = x[1:] %}}" for i in range(100)),
    "recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros that double": "{% macro m0() %}{% endmacro %}" + MACROS + "{{ m39() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "recursive loop that doubles": (
        "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}"
    ),
    "recursive block": "{% block b %}{{ self.b() }}{% endblock %}",
    "caller that doubles": "{% macro r() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call r() %}" * 40
    + "{% endcall %}" * 40,
    "long output": "{% for i in range(200) %}{{ 'x' * 1000 }}{% endfor %}",
    "long date": "{{ strftime_now('%d' * 10000) }}",
    "wide date": "{{ strftime_now('%1000000000d') }}",
    "deep source": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "long source expression": "{{ " + "+".join(["1"] * 8000) + " }}",
}


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.parametrize("name", BOMBS)
def test_bomb(name):
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(TemplateError):
        ChatTemplate(BOMBS[name], "", "", LIMITS).render([])
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 100_000_000


def test_namespaces_print_without_contents():
    source = "{% set n = namespace(x=1) %}{% set n.x = n %}{{ n }}"
    assert ChatTemplate(source, "", "").render([]) == "<namespace>"


def test_works_in_a_thread():
    errors = []

    def work():
        try:
            ChatTemplate(BOMBS["nested ranges"], "", "", LIMITS).render([])
        except TemplateError as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == ["the chat template takes more than 0.2 s"]


def test_messages_say_the_limit():
    with pytest.raises(TemplateError, match="makes 1000000000 characters; the limit is 4194304"):
        ChatTemplate("{{ 'a' * 10**9 }}", "", "").render([])
    with pytest.raises(TemplateError, match="makes 100001 characters; the limit is 100000"):
        ChatTemplate("{{ messages[0].content }}", "", "", LIMITS).render(
            [{"role": "user", "content": "x" * 100_001}]
        )


@pytest.mark.timed
def test_long_conversations_are_far_from_the_limits():
    """A thousand messages, half a megabyte, in the style that copies the list of messages again and again."""
    source = (
        "{% set ns = namespace(all=[], text='') %}"
        "{% for m in messages %}{% set ns.all = ns.all + [m] %}{% if loop.index0 % 2 == 0 %}"
        "{{ '<' ~ m.role ~ '>' ~ (m.content | trim) ~ '\n' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{{ ns.all | length }}"
    )
    messages = [{"role": "user", "content": "word " * 100}] * 1000
    text = ChatTemplate(source, "", "", RenderLimits(seconds=20)).render(messages)
    assert text.endswith("1000")
    assert len(text) > 499_000


def test_a_process_that_is_short_of_descriptors_does_not_blame_the_template() -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"), guarded(LIMITS):
        refuse()
