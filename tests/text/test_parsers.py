"""Parsers of streamed answers: each format, any split of the text, and text that only looks like a call."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaski.text.parsers import Content, FoundCall, Thought
from chaski.text.parsers.formats import FORMATS
from tests.text.parsing import CALL, NOW, ROME, parsed

DEEP = '{"name": "get_weather", "arguments": {"city": "</tool_call>\\" {", "deep": {"a": [1, "]"]}}}'
DEEP_CALL = FoundCall("get_weather", {"city": '</tool_call>" {', "deep": {"a": [1, "]"]}})
ATEM = (
    '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Rome'
    "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
)
NO_ATEM = '<atem:function_calls><atem:invoke name="now"></atem:invoke></atem:function_calls>'


BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


CASES = [
    ("bare-json", "Hello there.", [Content("Hello there.")]),
    ("bare-json", "  Hello  ", [Content("  Hello  ")]),
    ("bare-json", "", []),
    ("bare-json", ROME, [CALL]),
    ("bare-json", f"\n {ROME}\n", [CALL]),
    ("bare-json", f"[{ROME}, {ROME}]", [CALL, CALL]),
    ("bare-json", f"{ROME}; {ROME}\nDone", [CALL, CALL, Content("Done")]),
    ("bare-json", '{"name": "now"} and {"name": "now"}', [NOW, Content('and {"name": "now"}')]),
    ("bare-json", '{"name": "other", "arguments": {}}', [Content('{"name": "other", "arguments": {}}')]),
    ("bare-json", ' {"a": 1} text', [Content(' {"a": 1} text')]),
    ("bare-json", f"Here: {ROME}", [Content(f"Here: {ROME}")]),
    ("bare-json", '{"name": "now", "argu', [Content('{"name": "now", "argu')]),
    ("bare-json", "[1] is a list", [Content("[1] is a list")]),
    ("bare-json", "<think> deep\n</think>\n\nHi ", [Thought("deep"), Content("Hi ")]),
    ("bare-json", f"<think>x</think> {ROME}", [Thought("x"), CALL]),
    ("bare-json", "<think></think>Hi", [Content("Hi")]),
    ("bare-json", "<thin", [Content("<thin")]),
    ("bare-json", "Use <think> tags", [Content("Use <think> tags")]),
    ("bare-json", "<think>never ends ", [Thought("never ends ")]),
    ("bare-json", '{"function": "now", "parameters": "{}"}', [NOW]),
    ("bare-json", '{"type": "function", "function": {"name": "now", "arguments": null}}', [NOW]),
    ("hermes", f"<tool_call>\n{ROME}\n</tool_call>", [CALL]),
    (
        "hermes",
        f"Let me see. \n<tool_call>{ROME}</tool_call>\nthen",
        [Content("Let me see."), CALL, Content("then")],
    ),
    (
        "hermes",
        f"<tool_call>{ROME}\n{ROME}</tool_call>\n<tool_call>{DEEP}</tool_call>",
        [CALL, CALL, DEEP_CALL],
    ),
    ("hermes", f"<think>\nhm\n</think>\n\n<tool_call>{ROME}", [Thought("hm"), CALL]),
    ("hermes", "a <tool_call>no json</tool_call> b", [Content("a <tool_call>no json</tool_call> b")]),
    ("hermes", "a <tool_call>{}</tool_call> b", [Content("a <tool_call>{}</tool_call> b")]),
    ("hermes", "<tool_call></tool_call>", [Content("<tool_call></tool_call>")]),
    ("hermes", "a < b and <tool", [Content("a < b and <tool")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": NaN}</tool_call>', None),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>', None),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"\\ud800": ["\\ud83d\\ude00\\udc00"]}}</tool_call>',
        [FoundCall("now", {"\ufffd": ["\U0001f600\ufffd"]})],
    ),
    ("hermes", "<tool_call>```json\n" + ROME + "\n```</tool_call>", [CALL]),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', None),
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>', None),
    ("hermes", "<tool_call>" + "[" * 5000 + "</tool_call>", None),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": %s}}</tool_call>' % ("[" * 300 + "]" * 300),
        None,
    ),
    ("lfm2", "<|tool_call_start|>[now(a=0x%s)]<|tool_call_end|>" % ("f" * 5000), None),
    (
        "qwen3-coder",
        "Ok\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=deep>{"a": "<b>"}</parameter><parameter=on>null</parameter>'
        "<parameter=ratio>1.5</parameter>\n</function>\n</tool_call>",
        [
            Content("Ok"),
            FoundCall(
                "get_weather", {"city": "Rome", "days": 3, "deep": {"a": "<b>"}, "on": None, "ratio": 1.5}
            ),
        ],
    ),
    (
        "qwen3-coder",
        "<function=get_weather><parameter=city>\n 3 \n\n</parameter><parameter=days>x</parameter>"
        "<parameter=on>TRUE</parameter><parameter=new>7</parameter></function>!",
        [
            FoundCall("get_weather", {"city": " 3 \n", "days": "x", "on": True, "new": 7}),
            Content("!"),
        ],
    ),
    ("qwen3-coder", "<tool_call><function=now></function></tool_call>", [NOW]),
    ("qwen3-coder", "<tool_call>{}</tool_call>", None),
    ("llama3", f"<|python_tag|>{ROME.replace('arguments', 'parameters')}<|eom_id|>", [CALL]),
    ("llama3", f"<|python_tag|>{ROME}; {ROME}", [CALL, CALL]),
    ("llama3", '<|python_tag|>get_weather.call(city="Rome")', [CALL]),
    ("llama3", "<|python_tag|>import os", None),
    ("llama3", ROME, [CALL]),
    ("mistral", f"[TOOL_CALLS] [{ROME}, {ROME}]", [CALL, CALL]),
    ("mistral", f"[TOOL_CALLS]{ROME} bye", [CALL, Content("bye")]),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now[ARGS]{}', [CALL, NOW]),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]{"city": "Rome"}', [CALL]),
    ("mistral", "[THINK]so[/THINK]yes [TOOL_CALLS", [Thought("so"), Content("yes [TOOL_CALLS")]),
    ("mistral", "[TOOL_CALLS]get_weather", None),
    ("mistral", "[TOOL_CALLS] [{]}", None),
    ("granite", f"<|tool_call|>[{ROME}, {ROME}]", [CALL, CALL]),
    ("granite", f"<tool_call> [{ROME}]\n", [CALL]),
    (
        "granite",
        f"I look.\n<|tool_call|>\n{ROME}{ROME} then",
        [Content("I look."), CALL, Content(f"{ROME} then")],
    ),
    ("granite", f"<think>a</think><|tool_call|>[{DEEP}]", [Thought("a"), DEEP_CALL]),
    ("granite", f"<|tool_call|>[{ROME}", None),
    ("granite", f"<|tool_call|>[{ROME}}}", None),
    ("granite", '<|tool_call|>[{"name": "now", "arguments": [1]}] b', None),
    ("granite", "<|tool_call|> nothing", None),
    ("granite", "a <|tool_ca", [Content("a <|tool_ca")]),
    ("granite", "<response>a</response>", [Content("<response>a</response>")]),
    (
        "deepseek3",
        f"<think>a</think><｜tool▁calls▁begin｜>{BEGIN}function{SEPARATOR}get_weather\n```json\n"
        f'{{"city": "Rome"}}\n```{END}\n{BEGIN}now{SEPARATOR}{{}}{END}<｜tool▁calls▁end｜>',
        [Thought("a"), CALL, NOW],
    ),
    ("deepseek3", f"{BEGIN}now{SEPARATOR}[]{END}", None),
    ("cogito", f'{BEGIN}function{SEPARATOR}get_weather```json{{"city": "Rome"}}```{END}', [CALL]),
    ("cogito", f'{BEGIN}function{SEPARATOR}get_weather\n{{"city": "Rome"}}{END}', [CALL]),
    ("deepseek3", f"{BEGIN}function{SEPARATOR}{{}}{END}", [FoundCall("function", {})]),
    (
        "cohere",
        "<|START_THINKING|>plan<|END_THINKING|><|START_ACTION|>[\n"
        '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome"}}]<|END_ACTION|>',
        [Thought("plan"), CALL],
    ),
    ("cohere", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", [Content("Hi")]),
    (
        "command-r",
        'Action: ```json\n[{"tool_name": "get_weather", "parameters": {"city": "Rome"}}]\n```',
        [CALL],
    ),
    (
        "command-r",
        'Action: ```json\n[{"tool_name": "directly_answer", "parameters": {}}]\n``` Hi',
        [Content("Hi")],
    ),
    ("gemma3", '```tool_code\nget_weather(city="Rome")\n```', [CALL]),
    ("gemma3", '```tool_code\nget_weather(city="\\d")\n```', [FoundCall("get_weather", {"city": "\\d"})]),
    ("gemma3", "```tool_code\n" + "-" * 5000 + "1\n```", None),
    ("gemma3", "```tool_code\n" + "a." * 5000 + "b()\n```", None),
    ("gemma3", "```tool_code\n" + "f(" * 5000 + "\n```", None),
    ("gemma3", "```python\nprint(1)\n```", None),
    ("gemma3", "```tool_code\nprint(f(1))\n```", None),
    (
        "gemma4",
        '<|channel>thought\nhm<channel|><|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
        [Thought("hm"), CALL],
    ),
    (
        "functiongemma",
        '<start_function_call>call:f{a:<escape>b: "c"<escape>,n:[1,true],o:{k:null}}<end_function_call>',
        [FoundCall("f", {"a": 'b: "c"', "n": [1, True], "o": {"k": None}})],
    ),
    ("functiongemma", "<start_function_call>call:f{a:<escape>}<end_function_call>", None),
    (
        "glm-4.7",
        "<think>x</think><tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
        [Thought("x"), CALL],
    ),
    ("lfm2", '<|tool_call_start|>[get_weather(city="Rome"), now()]<|tool_call_end|>', [CALL, NOW]),
    ("lfm2", "<|tool_call_start|>[f(-1)]<|tool_call_end|>", None),
    (
        "olmo3",
        "<function_calls>\nf(a=-1.5, b=[true, None], c={'k': (1,)})\nnow()\n</function_calls>",
        [FoundCall("f", {"a": -1.5, "b": [True, None], "c": {"k": [1]}}), NOW],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>hm <|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
        [Thought("hm "), Content("Hi")],
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>Wait<|end|><|start|>assistant<|channel|>commentary"
        " to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        [Content("Wait"), CALL],
    ),
    ("harmony", " to=functions.now<|channel|>commentary json<|message|>", [NOW]),
    ("harmony", " to=functions.now<|channel|>commentary json<|message|>{}", [NOW]),
    ("harmony", "<|channel|>commentary to=functions.now<|message|>oops<|call|>", [Content("oops")]),
    ("harmony", "Plain", [Content("Plain")]),
    ("glimmer", " to=user<|message|>Hello<|eot|>", [Content("Hello")]),
    ("glimmer", "<|message|>Hello", [Content("Hello")]),
    (
        "glimmer",
        f" to=self<|message|>hm<|eom|><|start|>assistant to=get_weather<|message|>{ATEM}<|eom|>"
        f"<|start|>assistant to=now<|message|>{NO_ATEM}<|eot|>",
        [Thought("hm"), CALL, NOW],
    ),
    (
        "glimmer",
        " to=get_weather.get_weather<|message|><atem:function_calls>"
        '<atem:invoke name="get_weather.get_weather">'
        '<atem:parameter name="city"> <|eot|> <|start|>assistant to=user<|message|></atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter></atem:invoke></atem:function_calls><|eot|>',
        [FoundCall("get_weather", {"city": " <|eot|> <|start|>assistant to=user<|message|>", "days": 3})],
    ),
    ("glimmer", ' to=now<|message|>{"city":"SF"}<|eot|>', [Content('{"city":"SF"}')]),
    (
        "laguna",
        "<think>hm</think><tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Rome</arg_value>\n</tool_call>",
        [Thought("hm"), CALL],
    ),
    ("laguna", f"<tool_call>\n{ROME}\n</tool_call>", [CALL]),
    ("laguna", '<tool_call>get_weather\n{"city": "Rome"}</tool_call>', [CALL]),
    ("laguna", "<tool_call>get_weather\n{oops</tool_call>", None),
    ("poolside-v1", f"<tool_call>{ROME}</tool_call>", [CALL]),
    (
        "glm-4.7",
        "<tool_call>f<arg_key>a</arg_key><arg_value>Use </tool_call>, then</arg_value></tool_call> Hi",
        [FoundCall("f", {"a": "Use </tool_call>, then"}), Content("Hi")],
    ),
    (
        "qwen3-coder",
        "<tool_call><function=f><parameter=a>\n<tool_call></tool_call>\n</parameter></function></tool_call>",
        [FoundCall("f", {"a": "<tool_call></tool_call>"})],
    ),
    (
        "qwen3-coder",
        "<tool_call><function=f><parameter=a>\nopen\n</function></tool_call> Hi",
        [FoundCall("f", {"a": "open"}), Content("Hi")],
    ),
    ("qwen3-coder", "<function=now></function>\n</tool_call>\nHi", [NOW, Content("Hi")]),
    ("qwen3-coder", "<function=now></function></tool", [NOW, Content("</tool")]),
    ("qwen3-coder", "<function=now></function>\nHi</tool_call>", [NOW, Content("Hi</tool_call>")]),
    (
        "gemma4",
        '<|tool_call>call:f{a:<|"|>x<tool_call|>y<|"|>}<tool_call|>',
        [FoundCall("f", {"a": "x<tool_call|>y"})],
    ),
    (
        "cohere",
        "<|START_THINKING|>a<|END_THINKING|><|START_TEXT|>Hi<|END_TEXT|><|END_OF_TURN_TOKEN|>",
        [Thought("a"), Content("Hi")],
    ),
    ("glm-ocr", "<think>is text", [Content("<think>is text")]),
    ("glm-ocr", "<tool_call>now</tool_call>", [NOW]),
    ("ornith", "<think>hm</think><tool_call><function=now></function></tool_call>", [Thought("hm"), NOW]),
    ("nemotron-3.5-nano", "<tool_call><function=now></function></tool_call>", [NOW]),
    ("passthrough", f"<think>{ROME}", [Content(f"<think>{ROME}")]),
    # Lists in Python, as Llama 3.2 and 4 and others write them.
    ("bare-json", "[get_weather(city='Rome'), now()]", [CALL, NOW]),
    ("llama3", "<think>a</think>[now()] Done", [Thought("a"), NOW, Content("Done")]),
    (
        "llama3",
        "[get_weather(city='a [b](c) \"d\" {e')]",
        [FoundCall("get_weather", {"city": 'a [b](c) "d" {e'})],
    ),
    ("llama3", "[other(a=1)]", None),
    ("llama3", "[now(), other()]", None),
    ("llama3", "[now(", None),
    ("llama3", "[now, it's a list", None),
    ("llama3", "Here: [now()]", None),
    ("llama4", "<|python_start|>[get_weather(city='Rome')]<|python_end|>", [CALL]),
    ("llama4", f"<|python_start|><|python_end|>{ROME}{ROME}", [CALL, CALL]),
    ("llama4", "<|python_start|>import os<|python_end|>", [Content("import os")]),
    ("llama4", "It is [now()]", None),
    ("llama4", f"<|python_start|>I look.<|python_end|>{ROME}", [Content("I look."), CALL]),
    (
        "longcat",
        "<longcat_think>a</longcat_think>b<longcat_tool_call>get_weather\n<longcat_arg_key>city"
        "</longcat_arg_key>\n<longcat_arg_value>Rome</longcat_arg_value>\n</longcat_tool_call>",
        [Thought("a"), Content("b"), CALL],
    ),
    (
        "minicpm3",
        "<|thought_start|>\na\n<|thought_end|>\n<|tool_call_start|>\n```python\n"
        'get_weather(city="Rome")\nnow()\n```\n<|tool_call_end|>\nI look.',
        [Thought("a"), CALL, NOW, Content("I look.")],
    ),
    *(
        (
            "deepseek3.2",
            f'<think>a</think>\n\n<{mark}{block}>\n<{mark}invoke name="get_weather">\n<{mark}parameter '
            f'name="city" string="true">Rome</{mark}parameter>\n<{mark}parameter name="days" string="false">2'
            f"</{mark}parameter>\n</{mark}invoke>\n</{mark}{block}>",
            [Thought("a"), FoundCall("get_weather", {"city": "Rome", "days": 2})],
        )
        for mark, block in (
            ("｜DSML｜", "function_calls"),
            ("｜DSML｜", "tool_calls"),
            ("｜DSML｜ ", "calls"),
        )
    ),
    (
        "dots",
        '<dots_function_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>'
        "\n</invoke>\n</dots_function_call>",
        [CALL],
    ),
    ("dots", f"<dots_function_call>{ROME}</dots_function_call>", [CALL]),
    ("ernie", f"<think>a\n</think>\n\n<tool_call>\n{ROME}\n</tool_call>\n", [Thought("a"), CALL]),
    (
        "hunyuan-a13b",
        f"<think>a</think><tool_calls>[{ROME}, {ROME}]</tool_calls>",
        [Thought("a"), CALL, CALL],
    ),
    ("hunyuan-a13b", "<answer>a</answer>", None),
    (
        "hy4",
        "<think>a</think><tool_calls><tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "</tool_call></tool_calls>",
        [Thought("a"), CALL],
    ),
    ("phi4", f"<|tool_call|>[{ROME}]<|/tool_call|>", [CALL]),
    ("phi4", f"Sure. functools[{ROME}, {ROME}]", [Content("Sure."), CALL, CALL]),
    *(
        (
            "plamo3",
            "<|plamo:begin_think:plamo|>a<|plamo:end_think:plamo|><|plamo:begin_tool_requests:plamo|>"
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:"
            f"plamo|><|plamo:begin_tool_arguments:plamo|>{constrained}<|plamo:msg|>"
            '{"city": "Rome"}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>'
            "<|plamo:end_tool_requests:plamo|>",
            [Thought("a"), CALL],
        )
        for constrained in ("", "<|plamo:constrain|>json")
    ),
    # The closing tags end the answers, so they are not part of them.
    ("apertus", 'Hi <|tools_prefix|>[{"get_weather": {"city": "Rome"}}]', [Content("Hi"), CALL]),
    (
        "pangu",
        f"[unused16]a[unused17] b [unused11][{ROME}][unused12]",
        [Thought("a"), Content("b"), CALL],
    ),
    ("glm-4", '\nget_weather\n{"city": "Rome"}', [CALL]),
    ("glm-4", 'get_weather\n{"city": "Rome"}<|assistant|>now\n{}<|observation|>', [CALL, NOW]),
    ("glm-4", 'get_weather \n{"city": "Rome"}', [CALL]),
    ("glm-4", "<think>a</think>\nnow\n{}", [Thought("a"), NOW]),
    ("glm-4", f"\n{ROME}", [CALL]),
    ("glm-4", "I look.<|assistant|>now\n{}", [Content("I look."), NOW]),
    ("glm-4", "now\nand then", None),
    ("glm-4", "now is the time", None),
    ("glm-4", "I call now\n{}", None),
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>3<escape>,days:<escape>3<escape>}"
        "<end_function_call>",
        [FoundCall("get_weather", {"city": "3", "days": 3})],
    ),
]


def wanted(text, expected):
    """Return the wanted pieces; None means that the text is unchanged content."""
    return [Content(text)] if expected is None else expected


@pytest.mark.parametrize(("format", "text", "expected"), CASES)
def test_formats(format, text, expected):
    assert parsed(format, [text]) == wanted(text, expected)
    assert parsed(format, text) == wanted(text, expected)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.integers(0, 400)))
def test_any_split_gives_the_same(case, cuts):
    format, text, expected = case
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    portions = [text[a:b] for a, b in pairwise(bounds)]
    assert parsed(format, portions) == wanted(text, expected)


MARKS = sorted(
    {mark for format in FORMATS.values() for block in format.blocks for mark in block.marks}
    | {mark for format in FORMATS.values() for mark in (*format.silent, *(format.thinking or ()))}
)
FRAGMENTS = [
    *MARKS,
    ROME,
    DEEP,
    ROME[:20],
    '{"city": "Rome"}',
    "[ARGS]",
    SEPARATOR,
    "now",
    "now()",
    "<parameter=city>Rome</parameter>",
    "<|start|>assistant<|channel|>final<|message|>",
    " to=functions.now",
    "<|end|>",
    " ",
    "\n",
    '"',
    "\\",
    "<",
    "[",
    "]",
    "}",
    "word",
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_noise(format, fragments, data):
    """No parser raises, splits do not matter, and text without thinking and calls does not change."""
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    portions = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    pieces = parsed(format, portions)
    assert pieces == parsed(format, [text]) == parsed(format, text)
    unthinking = parsed(format, portions, thinking=False)
    # Spaces alone are not a header, and are not shown.
    has_header = format == "glimmer" and ("<|message|>" in text or not text.strip())
    # Nor are tags that are special tokens, which no text contains.
    tags = (FORMATS[format].thinking or ()) if FORMATS[format].special else ()
    if (
        format != "harmony"
        and not has_header
        and not any(tag in text for tag in tags)
        and not FORMATS[format].silent
        and not any(isinstance(piece, FoundCall) for piece in unthinking)
    ):
        # Tags around an empty list of calls are not shown.
        says_none = "directly" in text or "[]" in text
        assert says_none or "".join(piece.text for piece in unthinking) == text
