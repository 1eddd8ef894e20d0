"""Values that contain the marks of their own format, and texts that only look like calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from chaski.text.parsers import Content, FoundCall
from tests.text.parsing import NOW, joined, parsed

TOOLS: list[dict[str, Any]] = [
    {
        "function": {
            "name": "write",
            "parameters": {"properties": {"text": {"type": "string"}, "n": {"type": "integer"}}},
        }
    },
    {"function": {"name": "now"}},
]


def tagged(text: str, more: str = "") -> str:
    parameter = f"<parameter=text>\n{text}\n</parameter>\n{more}"
    return f"<tool_call>\n<function=write>\n{parameter}</function>\n</tool_call>"


def paired(text: str) -> str:
    return f"<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"


def invoked(text: str) -> str:
    parameter = f'<parameter name="text">{text}</parameter>'
    return f'<minimax:tool_call>\n<invoke name="write">\n{parameter}\n</invoke>\n</minimax:tool_call>'


N = "<parameter=n>\n3\n</parameter>\n"
WRITERS: dict[str, Callable[[str], str]] = {"qwen3-coder": tagged, "glm-4.7": paired, "minimax-m2": invoked}
VALUES = [
    "a</parameter>b</function>c</tool_call>d",
    "a</parameter>\n</function>\n</tool_call> b",
    "a</arg_value>\n</tool_call> b",
    "a</parameter></invoke></minimax:tool_call> b",
    'use <parameter=x> or <arg_key>k</arg_key><arg_value> or <parameter name="x">',
    "a</parameter>\n<parameter=text>\nb",
    "</parameter>",
    "  blanks  ",
    "<function=now>",
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("format", WRITERS)
def test_closing_tags_in_values(format: str, value: str) -> None:
    text = WRITERS[format](value)
    call = FoundCall("write", {"text": value})
    for portions in ([text], text):
        assert parsed(format, portions, tools=TOOLS) == [call]
    for between in ("", "\n"):
        pieces = parsed(format, text + between + WRITERS[format]("b"), tools=TOOLS)
        assert pieces == [call, FoundCall("write", {"text": "b"})]
    outer = WRITERS[format](f"see {text}, so")
    assert parsed(format, outer, tools=TOOLS) == [FoundCall("write", {"text": f"see {text}, so"})]


@pytest.mark.parametrize(
    ("format", "text", "expected"),
    [
        (
            "qwen3-coder",
            tagged("a</parameter>\n</function>\n</tool_call> b", N),
            [FoundCall("write", {"text": "a</parameter>\n</function>\n</tool_call> b", "n": 3})],
        ),
        (
            "qwen3-coder",
            f"{tagged('a')} Then: {tagged('b')} Done",
            [
                FoundCall("write", {"text": "a"}),
                Content("Then:"),
                FoundCall("write", {"text": "b"}),
                Content("Done"),
            ],
        ),
        (
            "gemma4",
            "<|tool_call>call:train{lr:1e-5,n:-3,big:1E+10,none:None,k:[],o:{}}<tool_call|>",
            [FoundCall("train", {"lr": 1e-5, "n": -3, "big": 1e10, "none": None, "k": [], "o": {}})],
        ),
        (
            "gemma4",
            '<|tool_call>call:write{text:<|"|>a<|"|> b <tool_call|> {c:1}<|"|>,n:3}<tool_call|>',
            [FoundCall("write", {"text": 'a<|"|> b <tool_call|> {c:1}', "n": 3})],
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.write<|message|>"
            '{"text": "a<|end|>b<|start|>c<|call|>"}<|call|>'
            "<|start|>assistant<|channel|>final<|message|>Hi<|end|>",
            [FoundCall("write", {"text": "a<|end|>b<|start|>c<|call|>"}), Content("Hi")],
        ),
        (
            "lfm2",
            "<|tool_call_start|>[write(text='it's a\n<|tool_call_end|> mark', n=3), now()]"
            "<|tool_call_end|> ok",
            [FoundCall("write", {"text": "it's a\n<|tool_call_end|> mark", "n": 3}), NOW, Content("ok")],
        ),
        (
            "functionary-3.1",
            'a<function=write>{"text": "</function>"}</function><function=now>{}</function>',
            [Content("a"), FoundCall("write", {"text": "</function>"}), NOW],
        ),
        (
            "internlm",
            'ok<|action_start|><|plugin|>\n{"name": "now", "parameters": {}}<|action_end|>',
            [Content("ok"), NOW],
        ),
        ("firefunction", ' functools[{"name": "now", "arguments": {}}]', [NOW]),
        ("minimax-m3", "</mm:think>Hi", [Content("Hi")]),
        # Text that is not a call stays, and the next call counts.
        ("hermes", '<tool_call>{bad "x}</tool_call> <tool_call>{"name": "now"}</tool_call>', None),
        ("glm-4.7", "Use <tool_call> tags. <tool_call>now</tool_call>", None),
        ("qwen3-coder", "A <tool_call> is: <tool_call>\n<function=now>\n</function>\n</tool_call>", None),
    ],
)
def test_values_are_read_by_their_grammar(format: str, text: str, expected: Any) -> None:
    for portions in ([text], text):
        pieces = parsed(format, portions, tools=TOOLS)
        if expected is None:
            assert pieces[-1] == NOW
            assert pieces[:-1] == joined([Content(text[: text.rindex("<tool_call>")].rstrip())])
        else:
            assert pieces == expected


@pytest.mark.parametrize(
    "text",
    [tagged("half")[:-32], paired("half")[:-20], "<tool_call>\n<function=write>\n<parameter=text>\nhalf"],
)
@pytest.mark.parametrize("format", ["qwen3-coder", "glm-4.7"])
def test_a_call_that_breaks_off_is_text(format: str, text: str) -> None:
    assert parsed(format, text, tools=TOOLS) == [Content(text)]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize(
    "inside",
    ["</parameter>", "</parameter>\n</function>\n</tool_call>x", "</arg_value></tool_call>x", "<", " "],
)
def test_long_values_are_quick(format: str, inside: str) -> None:
    text = WRITERS[format](f"a{inside * (100_000 // len(inside))}b")
    start = time.process_time()
    parsed(format, [text[i : i + 8] for i in range(0, len(text), 8)], tools=TOOLS)
    assert time.process_time() - start < 3
