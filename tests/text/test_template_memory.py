"""Hostile templates within the server's limits, in a process with little memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_MEGABYTES = 400
_SECONDS = 8

_WIDE = '{{ $x := printf "%4000000d" 1 }}'
_ESCAPED = '{{ $x := printf "%.4000000d" 0 }}'

GO = {
    "printf again and again": _WIDE + '{{ printf "' + "%[1]s" * 400 + '" $x }}',
    "printf of every argument": _WIDE + '{{ printf "' + "%s" * 400 + '"' + " $x" * 400 + " }}",
    "printf with a width argument": '{{ printf "' + "%[1]*d" * 400 + '" 1000000 }}',
    "printf with many widths": '{{ printf "' + "%3999999d" * 400 + '" 1 }}',
    "printf with precisions": '{{ printf "' + "%.1000000f" * 400 + '" 1.5 }}',
    "printf of what is left over": _WIDE + '{{ printf "" ' + " $x" * 400 + " }}",
    "printf in hexadecimal": _WIDE + '{{ printf "' + "%# [1]x" * 400 + '" $x }}',
    "printf with quotes": _WIDE + '{{ printf "' + "%+[1]q" * 400 + '" $x }}',
    "print": _WIDE + "{{ print" + " $x" * 400 + " }}",
    "println": _WIDE + "{{ println" + " $x" * 400 + " }}",
    "html": _WIDE + "{{ html" + " $x" * 400 + " }}",
    "js": _WIDE + "{{ js" + " $x" * 400 + " }}",
    "urlquery": _WIDE + "{{ urlquery" + " $x" * 400 + " }}",
    "variables": "".join(f'{{{{ $x{i} := printf "%4000000d" 1 }}}}' for i in range(400)),
    "wide variables": "".join(f'{{{{ $x{i} := printf "%3999999d\U0001f600" 1 }}}}' for i in range(400)),
    "nested": _WIDE + "{{ range 400 }}{{ range 400 }}{{ $y := print $x }}{{ end }}{{ end }}",
    "output": "{{ range 99999999 }}" + "x" * 9999 + "{{ end }}",
    "messages": "{{ range 9999 }}{{ $y := print $.Messages }}{{ end }}",
    "json of messages": "{{ range 9999 }}{{ $y := json $.Messages }}{{ end }}",
    "slices": "{{ range 99999999 }}{{ $y := slice $.Messages 0 }}{{ end }}",
    "turns": "{{ .System }}" + "x" * 100_000 + "{{ .Prompt }}{{ .Response }}",
    "escapes of messages": "{{ range .Messages }}{{ $x := js (js .Content) }}{{ end }}",
}

_A = "{% set a = 'a' * 4000000 %}"
JINJA = {
    "mapping": _A + "{{ ('%(a)s' * 1000) % {'a': a} }}",
    "tuple": _A + "{% set t = (a,) %}{{ ('%s' * 1000) % (t * 1000) }}",
    "mapping in a filter": _A + "{{ ('%(a)s' * 1000) | format(a=a) }}",
    "arguments of a filter": _A + "{{ ('%s' * 40) | format(" + "a, " * 40 + ") }}",
    "escapes by a format": "{% set a = '\U000e0001' * 400000 %}{{ ('%(a)a' * 1000) % {'a': a} }}",
    "the map by a format": _A + "{{ ('%s' * 400 + '%(a)s') % {'a': a} }}",
    "format method": _A + "{{ ('{0}' * 1000).format(a) }}",
    "format method with widths": "{{ ('{0:9999}' * 9999).format(1) }}",
    "concatenation": _A + "{{ " + " ~ ".join(["a"] * 400) + " }}",
    "set block": _A + "{% set x %}" + "{{ a }}" * 400 + "{% endset %}",
    "wide set block": _A + "{% set x %}\U0001f600" + "{{ a }}" * 30 + "{% endset %}",
    "macro": _A + "{% macro m() %}\U0001f600" + "{{ a }}" * 30 + "{% endmacro %}{% set x = m() %}",
    "separators of json": _A + "{{ messages | tojson(separators=(a, a)) }}",
    "lists": "{% set n = namespace() %}" + "".join(f"{{% set n.x{i} = [0] * 250000 %}}" for i in range(900)),
    "lists of characters": "{% set a = '\u0436' * 240000 %}"
    + "".join(f"{{% set x{i} = a | list %}}" for i in range(400)),
    "split": "{% set a = 'a ' * 2000000 %}{% set x = a.split() %}",
    "splits": "{% set a = 'ab ' * 240000 %}"
    + "".join(f"{{% set x{i} = a.split(' ') %}}" for i in range(400)),
    "lines": "{% set a = '\n' * 4000000 %}{% set x = a.splitlines() %}",
    "items": "{% set d = dict((range(99999) | map('string') | list) | groupby('0')) %}"
    + "".join(f"{{% set x{i} = messages | map('items') | map('list') | list %}}" for i in range(4000)),
    "namespace that grows": "{% set n = namespace(x=[]) %}{% for i in range(99999) %}"
    "{% set n.x = n.x + [i ~ 'a' * 9999] %}{% endfor %}",
    "replace": _A + "{{ a | replace('', a) }}",
    "center": _A + "{% set x = [" + "a.center(4000000), " * 200 + "] %}",
    "join": _A + "{{ ([a] * 1) | join }}" * 1 + "{{ (range(99999) | map('replace', '', a)) | join }}",
}

_PROGRAM = """
import json, resource, sys, time
from chaski.errors import TemplateError
from chaski.text.template.chat import ChatTemplate
from chaski.text.template.go import GoTemplate
from chaski.text.template.meter import RenderLimits
limit, (go, jinja, messages) = int(sys.argv[1]) << 20, json.load(sys.stdin)
limits = RenderLimits(seconds=0.5)
GoTemplate("{{ .Prompt }}").render(messages[:1])
ChatTemplate("{{ messages[0].role | upper }}", "", "").render(messages[:1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
def outcome(make):
    start = time.process_time()
    try:
        text = f"{len(make().render(messages))} characters"
    except TemplateError as error:
        text = str(error)
    except BaseException as error:
        text = repr(error)
    return text, time.process_time() - start
found = {f"go: {name}": outcome(lambda: GoTemplate(source, limits)) for name, source in go.items()}
for name, source in jinja.items():
    found[f"jinja: {name}"] = outcome(lambda: ChatTemplate(source, "", "", limits))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def outcomes():
    messages = [{"role": ("user", "assistant")[i % 2], "content": "\x01" * 1000} for i in range(2000)]
    text = json.dumps((GO, JINJA, messages))
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(_MEGABYTES)],
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("name", [*(f"go: {name}" for name in GO), *(f"jinja: {name}" for name in JINJA)])
def test_hostile_template(outcomes, name):
    text, seconds = outcomes[name]
    assert "the limit is" in text or "takes more than" in text, text
    assert seconds < _SECONDS
