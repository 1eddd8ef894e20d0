"""Every operation of both template languages counts: templates that compute for long stop soon.

Each template below repeats one operation on the largest values within one expression, or over items without a
loop body. Without a count for that operation, it would run for minutes or hours.
"""

from __future__ import annotations

import time

import pytest

from chaski.errors import TemplateError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.go import GoTemplate
from chaski.text.template.meter import RenderLimits
from tests.tiers import long_after

LIMITS = RenderLimits(seconds=0.2)
STOPPED = "takes more than|bytes in all|compares|fromkeys|makes"
# Processor seconds of the rendering thread: reading the longest templates here takes half a second.
_MOST_SECONDS = 2
# The same text or list twice, as two objects.
TEXTS = "{% set a = 'x' * 4000000 %}{% set b = a[1:] ~ 'x' %}"
LISTS = "{% set a = range(99999) | list %}{% set b = range(99999) | list %}"
COLLIDING = "range(0, 60000 * (2**61 - 1), 2**61 - 1)"
# Each place of the text is compared with nearly all of the other text, from its end.
BACKWARDS = "{{{{ ('a' * 400000).{}('ab' ~ 'a' * 200000) }}}}"
LOOP = "{{% for i in range(99999) if {0} %}}{{% endfor %}}"


def many(operation: str, length: int = 24_000) -> str:
    """Return a list of many results of an operation; other expressions of this length nest too deeply."""
    return "{% set x = [" + ", ".join([operation] * (length // (len(operation) + 2))) + "] %}"


JINJA = {
    "a loop that refuses its items": LOOP.format("false") * 200,
    "a loop that refuses by a comparison": TEXTS + LOOP.format("a != b"),
    "in, as the condition of a loop": LISTS + LOOP.format("-1 in a"),
    "not in": LISTS + LOOP.format("99998 not in a"),
    "comparisons of texts": TEXTS + many("a != b"),
    "comparisons of lists": LISTS + many("a != b"),
    "orders of lists": LISTS + many("a < b"),
    "chains of comparisons": LISTS + many("a == b == a == b"),
    "in": LISTS + many("-1 in a"),
    "the test eq": LISTS + many("a is ne(b)"),
    "the filter select": "{{ range(99999) | select('in', [-1]) | list | length }}" * 200,
    "a chain of filters": "{{ range(99999) " + "| select " * 60 + "| list | length }}" * 9,
    "rejecting": "{{ range(99999) | reject | list }}" * 99,
    "a long attribute": "{{ range(99999) | groupby('" + "real." * 20_000 + "real') }}",
    "many attributes": "{{ range(99999) | sort(attribute='" + "real," * 20_000 + "real') }}",
    "the attribute of a sum": "{{ range(99999) | sum(attribute='" + "real." * 20_000 + "real') }}",
    "the attribute of a map": "{{ range(99999) | map(attribute='" + "real." * 20_000 + "real') | list }}",
    "groupby": "{% for i in range(99999) %}{% if range(9999) | groupby('real') %}{% endif %}{% endfor %}",
    "unique keys with one hash": "{{ " + COLLIDING + " | unique | list | length }}",
    "a map of keys with one hash": "{{ dict(" + COLLIDING + " | groupby('real')) | length }}",
    "fromkeys": "{{ {}.fromkeys(" + COLLIDING + ") }}",
    "subtraction": "{% set d = dict(range(60000) | groupby('real')) %}" + many("d.keys() - [1]"),
    "strip": TEXTS + many("a.strip(a)"),
    "strip by many": "{{ ('a' * 2000000).strip('" + "".join(map(chr, range(0x4E00, 0x5E00))) + "a') }}",
    "rfind": BACKWARDS.format("rfind"),
    "rindex": BACKWARDS.format("rindex"),
    "rsplit": BACKWARDS.format("rsplit"),
    "rpartition": BACKWARDS.format("rpartition"),
    "count of a list": LISTS + many("a.count(-1)"),
    "a format with long lists": LISTS + "{{ '" + "%(a).1s" * 12_000 + "' % {'a': a} }}",
    "json": LISTS + many("(a | tojson) == 1"),
    "sorting": LISTS + many("(b | reverse | sort) == 1", length=8000),
    "the largest": LISTS + many("a | max < 0"),
}  # fmt: skip

GO_TEXT = '{{ $a := printf "%4000000s" "x" }}{{ $b := printf "%4000000s" "x" }}'
GO = {
    "ne": GO_TEXT + "{{ range 1000000000 }}{{ if ne $a $b }}{{ end }}{{ end }}",
    "eq of many": GO_TEXT + '{{ $b = printf "%4000000s" "y" }}{{ if eq $a ' + "$b " * 30_000 + "}}{{ end }}",
    "lt": GO_TEXT + "{{ if or " + "(lt $a $b) " * 10_000 + "}}{{ end }}",
    "len": GO_TEXT + "{{ if and " + "(len $a) " * 12_000 + "}}{{ end }}",
    "variables": "".join(f"{{{{ $v{i} := 1 }}}}" for i in range(4000))
    + "{{ if eq 2 " + "$v0 " * 9000 + "}}{{ end }}",
    "range": "{{ range 1000000000 }}{{ end }}",
    "slice": GO_TEXT + "{{ if and " + "(slice $a 1) " * 9000 + "}}{{ end }}",
    "json": GO_TEXT + "{{ if and " + "(json $a) " * 9000 + "}}{{ end }}",
}  # fmt: skip


@pytest.mark.timed
@pytest.mark.parametrize("name", long_after(8, JINJA))
def test_jinja(name: str) -> None:
    template = ChatTemplate(JINJA[name], "", "", LIMITS)
    start = time.thread_time()
    with pytest.raises(TemplateError, match=STOPPED):
        template.render([])
    assert time.thread_time() - start < _MOST_SECONDS


@pytest.mark.timed
@pytest.mark.parametrize("name", long_after(2, GO))
def test_go(name: str) -> None:
    template = GoTemplate(GO[name], LIMITS)
    start = time.thread_time()
    with pytest.raises(TemplateError, match=STOPPED):
        template.render([{"role": "user", "content": "x"}])
    assert time.thread_time() - start < _MOST_SECONDS


def test_comparisons_make_nothing() -> None:
    """A long text may be compared as often as time allows."""
    source = "{% for i in range(200) if messages[0].content != 'x' %}{% endfor %}fine"
    rendered = ChatTemplate(source, "", "", RenderLimits(seconds=20)).render([{"content": "y" * 4_000_000}])
    assert rendered == "fine"


def test_strip_and_trim_are_as_before() -> None:
    source = "{{ '  a ' | trim }}{{ 'xxaxx' | trim('x') }}{{ ' xa '.strip(' x') }}{{ 'aab'.rstrip('b') }}"
    assert ChatTemplate(source, "", "").render([]) == "aaaaa"
