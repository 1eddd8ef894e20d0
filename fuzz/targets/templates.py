"""Chat templates in Jinja and in Go's language, and the parsers that are derived from them."""

from __future__ import annotations

from typing import Any

from chaski.text.template.chat import ChatTemplate
from chaski.text.template.go import GoTemplate
from chaski.text.template.meter import RenderLimits
from fuzz.mutations import words
from fuzz.target import Target

__all__ = ["TARGETS"]

_LIMITS = RenderLimits(seconds=1.0, characters=1 << 18, elements=1 << 16)
_CALL = {"function": {"name": "get", "arguments": {"a": 1, "b": ["x"]}}}
_TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hello <|end|> {{ x }}"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "7", "tool_name": "get"},
    {"role": "assistant", "content": "It is 7.", "thinking": "so"},
    {"role": "user", "content": "And?"},
]
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "description": "d"}}, "required": ["a"]}
_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get", "description": "d", "parameters": _SCHEMA}}
]


def jinja(data: bytes) -> None:
    """A template renders the same text twice or is refused, within its limits of time and size."""
    source = data.decode("utf-8", "replace")
    template = ChatTemplate(source, "<s>", "</s>", _LIMITS)
    first = template.render(_TALK, tools=_TOOLS, enable_thinking=True)
    assert len(first) <= _LIMITS.characters
    if "strftime_now" not in source:
        assert template.render(_TALK, tools=_TOOLS, enable_thinking=True) == first
    template.render(_TALK[:2], add_generation_prompt=False)


def go(data: bytes) -> None:
    """A template renders the same text twice or is refused, within its limits of time and size."""
    template = GoTemplate(data.decode("utf-8", "replace"), _LIMITS)
    first = template.render(_TALK, tools=_TOOLS, think=True)
    assert len(first) <= _LIMITS.characters
    assert template.render(_TALK, tools=_TOOLS, think=True) == first
    template.render_prompt("Hi", "Be short.")


_JINJA = words(
    "{{ messages | length }}", "{% set x = messages[0] %}", "{% for x in range(9) %}{{ x }}{% endfor %}",
    "{% if tools is none %}a{% else %}b{% endif %}", "{{ x }}", "{{ 7 * '7' }}",
    "{{ messages[-1].content | trim | upper }}", "{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1] %}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(tools) }}",
    "{{ tools | tojson }}", "{{ dict(a=1) | items | list }}",
    "{{", "}}", "{%", "%}", "{%-", "-%}", "{#", "#}", "if", "elif", "else", "endif", "for", "in", "endfor",
    "set", "endset", "macro", "endmacro", "call", "endcall", "filter", "endfilter", "generation",
    "endgeneration", "namespace", "loop", "loop.index0", "loop.previtem", "recursive", "messages", "message",
    "message.content", "message['role']", "tools", "tojson", "trim", "length", "items", "selectattr", "map",
    "list", "join", "dictsort", "groupby", "batch", "slice", "round", "replace", "split", "strip", "upper",
    "is defined", "is mapping", "is string", "is iterable", "not", "and", "or", "==", "~", "|", "+", "*",
    "**",
    "//", "%", "[::-1]", "[:", "raise_exception", "strftime_now", "range", "dict", "cycler", "joiner",
    "lipsum", "loop.changed", "__class__", "format", "'", '"', "none", "true", "1", "0", "99999999999", "-1",
    "do", "break", "continue", "include", "import", "extends", "block", "with", "autoescape", "\\u0000",
)  # fmt: skip
_GO = words(
    "{{ .Prompt }}", "{{ range $i, $x := .Messages }}{{ $i }}{{ .Role }}{{ end }}",
    "{{ $x := 1 }}{{ $x = 2 }}",
    "{{ if and .System (gt (len .Messages) 1) }}a{{ else }}b{{ end }}",
    "{{ json .Tools }}", "{{ .Response }}",
    '{{ printf "%v %q" .System 1 }}', "{{ with .System }}{{ . }}{{ end }}", "{{ slice .Messages 1 }}",
    "{{", "}}", "{{-", "-}}", "if", "else", "else if", "end", "range", "with", "define", "template", "block",
    "break", "continue", ".Messages", ".System", ".Prompt", ".Response", ".Tools", ".Role", ".Content",
    ".ToolCalls", ".Function.Name", ".Function.Arguments", ".Thinking", "$", "$.", "$i", "$x", ":=", "=", "|",
    "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len", "index", "slice", "print", "printf",
    "println", "json", "html", "js", "urlquery", "call", "currentDate", "(", ")", ",", "1", "-1", "0x1p-2",
    "'a'", '"%[3]*d"', '"%v"', "`x`", "nil", "true", "/*", "*/", "99999999999999999999",
)  # fmt: skip

TARGETS = (Target("jinja", jinja, _JINJA), Target("go", go, _GO))
