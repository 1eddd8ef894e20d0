"""Calls that templates render and parsers parse: the cases, and both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from chaski.chat.choice import choose_chat_format
from chaski.chat.sources import TemplateSources
from chaski.errors import TemplateError
from chaski.text.parsers import Content, FoundCall, Parser, Piece, Thought
from chaski.text.parsers.probe import Render, answers
from chaski.text.template.chat import ChatTemplate

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Writes a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Where."},
                    "text": {"type": "string", "description": "What."},
                    "lines": {"type": "integer", "description": "How many."},
                    "ratio": {"type": "number", "description": "How much."},
                    "force": {"type": "boolean", "description": "Whether."},
                    "tags": {"type": "array", "description": "Words.", "items": {"type": "string"}},
                    "place": {"$ref": "#/$defs/Place", "description": "Nested."},
                },
                "required": ["path"],
                "$defs": {
                    "Place": {
                        "type": "object",
                        "properties": {"x": {"type": "integer"}, "names": {"type": "array"}},
                    }
                },
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time.",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]

_MARKS = (
    "a </parameter> b </function> c </tool_call> d </arg_value> e <|tool_call_end|> f ]]> g <tool_call|> h "
    "</TOOLCALL> i </invoke> j <|close|>argument<|sep|> k <|tool_call:end|> l [TOOL_CALLS] m"
)
_EXAMPLES = (
    "1: <tool_call>\n<function=now>\n<parameter=p>\nv\n</parameter>\n</function>\n</tool_call>\n"
    "2: <tool_call>now<arg_key>p</arg_key><arg_value>v</arg_value></tool_call>\n"
    '3: <invoke name="now"><parameter name="p">v</parameter></invoke>\n'
    '4: <tool_call>{"name": "now", "arguments": {}}</tool_call>.'
)


class Case(Struct, frozen=True):
    """Calls of a turn, with the text and thought before them."""

    calls: list[FoundCall]
    said: str = ""
    thought: str = ""


def _writing(**arguments: Any) -> FoundCall:
    return FoundCall("write_file", arguments)


CASES: Mapping[str, Case] = {
    "one call": Case([_writing(path="a.txt", lines=3)]),
    "no arguments": Case([FoundCall("now", {})]),
    "two calls": Case([_writing(path="a.txt", lines=3), FoundCall("now", {})]),
    "said before": Case([_writing(path="a.txt")], "I write it."),
    "thought before": Case([_writing(path="a.txt")], "", "A file is needed."),
    "said and thought": Case([_writing(path="a.txt"), FoundCall("now", {})], "I write.", "A file is needed."),
    "quotes": Case([_writing(path="a.txt", text="it's \"so\", isn't it")]),
    "lines": Case([_writing(path="a.txt", text="first\n  second\n\nthird")]),
    "blanks": Case([_writing(path="a.txt", text="  both sides ")]),
    "unicode": Case([_writing(path="Köln/日本/🦙.txt", text="é\u00a0ß")]),
    "empty text": Case([_writing(path="a.txt", text="")]),
    "words of JSON": Case([_writing(path="true", text="null")]),
    "words of Python": Case([_writing(path="5", text="['None', True]")]),
    "marks": Case([_writing(path="a.txt", text=_MARKS, lines=3)]),
    "examples": Case([_writing(path="a.txt", text=_EXAMPLES, lines=3)]),
    "markup": Case([_writing(path="a.html", text='<p class="x">1 < 2 &amp; 3</p>\n')]),
    "numbers": Case([_writing(path="a", lines=2**63 + 1, ratio=1e-05)]),
    "less than nothing": Case([_writing(path="a", lines=-7, ratio=-0.5)]),
    "nested": Case(
        [
            _writing(
                path="a", force=True, tags=["x", "it's", 'say "hi"'], place={"x": 1, "names": ["a", ["b"]]}
            )
        ]
    ),
    "empty lists": Case([_writing(path="a", force=False, tags=[], place={})]),
}


# For templates that write more than an answer for an earlier turn, only calls are compared.
CALLS_ONLY = {
    "Apriel-1.6": "leaves out what opens a thought",
    "command-r-plus": "ends with what the model shall do",
    "DeepSeek-R1-Distill": "puts the text of the turn after its calls",
    "Nemotron-Nano-v2": "puts the text of the turn into one before it",
    "gpt-oss": "shows the text of the turn as a thought",
    "tencent-Hy3": "ends with its end token",
}


class Rendered(Struct, frozen=True):
    """The output of a template for a case: the end of the prompt, and the answer to parse."""

    prompt: str
    text: str
    calls: int


def rendered(render: Render, case: Case) -> Rendered | None:
    """Return the template's output for the case; None if it refuses it or writes no calls."""
    found = next(answers(render, case.calls, TOOLS, case.said, case.thought), None)
    return None if found is None else Rendered(found.prompt[-80:], found.text, len(found.calls))


def chat_format(source: str) -> Any:
    """Return the chat format that is chosen for a template in Jinja."""
    return choose_chat_format(TemplateSources("a model", "", jinja=source, bos="<s>", eos="</s>"))


def rendering(source: str) -> Render:
    """Return a function that renders messages with a Jinja template."""
    template = ChatTemplate(source, "<s>", "</s>")
    return template.probing()


def recorded(source: str) -> Iterator[tuple[str, Rendered]]:
    """Yield the recorded outputs of templates for each case."""
    render = rendering(source)
    for name, case in CASES.items():
        try:
            found = rendered(render, case)
        except TemplateError:
            continue
        if found is not None:
            yield name, found


def read(parser: Parser, portions: Sequence[str]) -> list[Piece]:
    """Return the pieces of an answer, with adjacent pieces of one kind joined."""
    pieces = [piece for portion in portions for piece in parser.feed(portion)]
    pieces += parser.flush()
    found: list[Piece] = []
    for kind, group in groupby(pieces, type):
        if kind is FoundCall:
            found += group
        else:
            found.append(kind("".join(piece.text for piece in group)))
    return found


def fault(template: str, pieces: Sequence[Piece], case: Case, text: Rendered) -> str:
    """Return the difference of pieces from the case, or an empty text."""
    calls = [piece for piece in pieces if isinstance(piece, FoundCall)]
    wanted = list(case.calls[: text.calls])
    if calls != wanted:
        return f"calls are {calls}, not {wanted}"
    if any(name in template for name in CALLS_ONLY):
        return ""
    for kind, said in ((Content, case.said), (Thought, case.thought)):
        shown = "".join(piece.text for piece in pieces if isinstance(piece, kind)).strip()
        if shown != (said if said and said in text.text else ""):
            return f"{kind.__name__} is {shown!r}, not {said!r}"
    return ""
