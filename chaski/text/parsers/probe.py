"""The choice of a format by the text that a template renders for a call.

A conversation with distinctive calls is rendered, and each format of the table reads the assistant's turn.
The first format that reads the same calls is the model's. For JSON between tags that are not in the table, a
block is derived from the rendering.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from os.path import commonprefix
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import TemplateError
from chaski.text.parsers.blocks import CallBlock
from chaski.text.parsers.formats import ARCHITECTURES, FORMATS, choose_format, parser_for
from chaski.text.parsers.pieces import FoundCall, Parser
from chaski.text.parsers.python_text import PythonStrings
from chaski.text.parsers.readers import read_json, read_keyed_json, read_named_json, read_python
from chaski.text.parsers.stream import Block
from chaski.text.parsers.tags import TagBlock


class Render(Protocol):
    """A function that renders messages in the form of transformers' templates, and tools.

    Raises TemplateError.
    """

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        /,
        *,
        add_generation_prompt: bool = True,
    ) -> str: ...


_ASKED = "chaski asks for it"
_SAID = "chaski says it"
_THOUGHT = "chaski thinks of it"
_MAX_LENGTH = 16_000
_RESULT = "chaski has found it"
_NAMES = ("probe_first", "probe_second")
_ARGUMENTS: tuple[Mapping[str, Any], ...] = (
    {"probe_text": "words of it", "probe_number": 1729},
    {"probe_text": "more of it", "probe_number": 87539319},
)
_PROPERTIES = {
    "probe_text": {"type": "string", "description": "A text."},
    "probe_number": {"type": "integer", "description": "A number."},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": list(_PROPERTIES)},
        },
    }
    for name in _NAMES
]
CALLS = [FoundCall(name, arguments) for name, arguments in zip(_NAMES, _ARGUMENTS, strict=True)]

# Ids of calls: Kimi's, which contain the name, and nine letters and digits, as Mistral's templates require.
_IDS = ("functions.{name}:{index}", "probe000{index}")

# Formats in which templates write calls, the most specific first; one format for each set of equal blocks.
_READ_BACK = (
    "harmony",
    "glimmer",
    "gemma4",
    "functiongemma",
    "kimi-k3",
    "kimi-k2",
    "minimax-m3",
    "minimax-m2",
    "hunyuan",
    "deepseek3.2",
    "dots",
    "deepseek3",
    "seed",
    "solar",
    "plamo3",
    "pangu",
    "apertus",
    "hunyuan-a13b",
    "minimax-m1",
    "apriel",
    "nemotron",
    "gigachat",
    "functionary-3.2",
    "functionary-3.1",
    "ernie",
    "hermes",
    "granite",
    "qwen3-coder",
    "minicpm",
    "longcat",
    "hy4",
    "glm-4.7",
    "mistral",
    "cohere",
    "command-r",
    "lfm2",
    "minicpm3",
    "olmo3",
    "internlm",
    "firefunction",
    "gemma3",
)


# Tags of functions, which templates put into their own tags.
_INNER = [
    block
    for name in ("qwen3-coder", "minimax-m2", "minicpm")
    for block in FORMATS[name].blocks[-1:]
    if isinstance(block, TagBlock)
]


class CallFormat(Struct, frozen=True):
    """The format of a template's calls.

    name      name of a format of the table
    block     block of calls that is not in the table, derived from what the template renders
    shows     whether the template writes calls and the format reads them
    """

    name: str
    block: Block | None = None
    shows: bool = False


class Answer(Struct, frozen=True):
    """The assistant's turn in a rendering: the prompt that it continues, its text, and its calls."""

    prompt: str
    text: str
    calls: list[FoundCall]


def choose_call_format(render: Render, source: str = "", architecture: str = "") -> CallFormat:
    """Return the format that reads the calls that the template renders.

    For a template that renders none, its instructions to the model or its text, the `source`, show the
    format; the last resort is the architecture.
    """
    answer = next(answers(render), None)
    if answer is not None:
        name = name_for(answer, source, architecture)
        if name and not _leaves_tags(name, answer):
            return CallFormat(name, shows=True)
        if (block := _derived(answer)) is not None:
            return CallFormat("bare-json", block, shows=True)
        if name:
            return CallFormat(name, shows=True)
    try:
        told = render([{"role": "user", "content": _ASKED}], TOOLS)
    except TemplateError:
        told = ""
    name = choose_format(f"{told}{source}", architecture)
    return CallFormat(name, shows=answer is not None and _reads(name, answer))


def name_for(answer: Answer, source: str = "", architecture: str = "") -> str:
    """Return the format of the table that reads the calls of a turn, or an empty name if there is none.

    If there are several, it is one whose thoughts end as in the template, and whose tags around answers the
    template contains or models of the architecture write.
    """
    names = [name for name in _READ_BACK if _reads(name, answer)]
    own = ARCHITECTURES.get(architecture)
    names.sort(key=lambda name: name != own and not all(tag in source for tag in FORMATS[name].wrapping))

    def thinks_so(name: str) -> bool:
        tags = FORMATS[name].thinking
        return tags is not None and tags[1] in source

    return next(filter(thinks_so, names), names[0] if names else "")


def answers(
    render: Render,
    calls: list[FoundCall] = CALLS,
    tools: Sequence[Mapping[str, Any]] = TOOLS,
    said: str = _SAID,
    thought: str = _THOUGHT,
) -> Iterator[Answer]:
    """Yield the turns that a template renders for calls, from the fullest to the plainest.

    Some templates refuse text or a thought next to calls, two calls at once, or arguments as objects. Others
    write only the id of a call, which contains its name.
    """
    kinds = product((calls, calls[:1]) if len(calls) > 1 else (calls,), _IDS, (False, True))
    for kept, call_id, as_text in kinds:
        for spoken in _spoken(said, thought):
            turn = {"role": "assistant", **spoken, "tool_calls": _rendered(kept, call_id, as_text)}
            answer = _answer(render, turn, kept, tools)
            if answer is not None:
                yield answer


def _spoken(said: str, thought: str) -> Iterator[Mapping[str, str | None]]:
    """Yield the text and thought of a turn that accompany its calls, the fullest first."""
    if thought:
        yield {"content": said, "reasoning_content": thought, "thinking": thought}
    if said:
        yield {"content": said}
    yield {"content": ""}
    yield {"content": None}


def _rendered(calls: Sequence[FoundCall], call_id: str, as_text: bool) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "id": call_id.format(name=call.name, index=index),
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False) if as_text else call.arguments,
            },
        }
        for index, call in enumerate(calls)
    ]


def _answer(
    render: Render, turn: Mapping[str, Any], calls: list[FoundCall], tools: Sequence[Mapping[str, Any]]
) -> Answer | None:
    """Return what the template writes for the turn; None if it refuses the turn or omits calls."""
    asked: Mapping[str, Any] = {"role": "user", "content": _ASKED}
    told: Mapping[str, Any] = {"role": "assistant", "content": _SAID}
    results = [
        {"role": "tool", "content": _RESULT, "tool_call_id": call["id"], "name": call["function"]["name"]}
        for call in turn["tool_calls"]
    ]

    def shown(*messages: Mapping[str, Any]) -> str:
        begins = messages[-1]["role"] == "user"
        return render(messages, tools, add_generation_prompt=begins).rpartition(_ASKED)[2]

    try:
        before = shown(asked)
        whole, ending = shown(asked, turn), shown(asked, told).rpartition(_SAID)[2]
        if not _shows(whole, calls):
            # Some templates write calls only if their results follow.
            whole = shown(asked, turn, *results).partition(_RESULT)[0]
            follows = shown(asked, told, {"role": "user", "content": _RESULT}).rpartition(_SAID)[2]
            ending = follows.partition(_RESULT)[0].rstrip()
            whole = whole.rpartition(ending)[0] if ending and ending in whole else whole
    except TemplateError:
        return None
    if not _shows(whole, calls) or len(whole) > _MAX_LENGTH:
        return None
    prompt = _before_mark(commonprefix([whole, before]))
    return Answer(prompt, _without_ending(whole[len(prompt) :], (before, ending)), calls)


def _shows(text: str, calls: Sequence[FoundCall]) -> bool:
    """Return whether a text names all calls; it must contain a name twice if two calls have it."""
    names = [call.name for call in calls]
    return all(text.count(name) >= names.count(name) for name in names)


def _without_ending(text: str, endings: Sequence[str]) -> str:
    """Return the text of a turn without the text that ends it and begins the next one."""
    for ending in endings:
        mark = ending.strip()
        if mark and text.rstrip().endswith(mark):
            return text.rstrip().removesuffix(mark)
    return text


def _before_mark(text: str) -> str:
    """Return the text without an incomplete mark at its end."""
    for opening, closing in (("<", ">"), ("[", "]")):
        start = text.rfind(opening)
        if start > text.rfind(closing):
            text = text[:start]
    return text


def _reads(name: str, answer: Answer) -> bool:
    """Return whether the format reads exactly the answer's calls."""
    marks = [block.opening for block in FORMATS[name].blocks]
    if marks and not any(mark in answer.text for mark in marks):
        return False
    return _calls(parser_for(name, TOOLS, answer.prompt), answer.text) == answer.calls


def _derived(answer: Answer) -> Block | None:
    """Return a block with the tags of an answer's calls; None if their notation is unknown."""
    for block in _possible(answer):
        parser = parser_for("bare-json", TOOLS, answer.prompt, block=block)
        if _calls(parser, answer.text) == answer.calls:
            return block
    return None


def _leaves_tags(name: str, answer: Answer) -> bool:
    """Return whether a tag that the format takes for text precedes the calls that it reads."""
    before: list[str] = []
    for piece in parser_for(name, TOOLS, answer.prompt).feed(answer.text):
        if isinstance(piece, FoundCall):
            break
        before.append(piece.text)
    rest = _before("".join(before), len("".join(before))).strip()
    return rest.startswith("<") and rest.endswith(">")


def _possible(answer: Answer) -> Iterator[Block]:
    """Yield blocks that begin and end like the first call of an answer."""
    text, name = answer.text, answer.calls[0].name
    yield from _around_tags(text)
    if (value := _json_with(text, str(_ARGUMENTS[0]["probe_number"]))) is not None:
        yield from _around_json(text, name, *value)
    yield from _around_python(text, text.find(f"{name}("))


def _around_tags(text: str) -> Iterator[Block]:
    for inner in _INNER:
        start, end = text.find(inner.function.before), text.find(inner.closing)
        opening = _before(text, start).strip() if start >= 0 else ""
        if opening and end >= 0:
            closing = text[end + len(inner.closing) :].partition(opening)[0]
            closing = closing.rpartition(inner.closing)[2].strip()
            if closing:
                framing = "\n" if f"\n{_ARGUMENTS[0]['probe_text']}\n" in text else ""
                yield replace(inner, block=(opening, closing), orphan="", framing=framing)


def _around_json(text: str, name: str, start: int, end: int) -> Iterator[Block]:
    opening, named, mark = _before(text, start).partition(name)
    opening = opening.strip()
    if not opening:
        return
    closing = text[end:].partition(opening)[0].strip() or None
    if not named:
        for read in (read_json, read_keyed_json):
            yield CallBlock(opening, closing, read)
    elif mark:
        mark = mark.strip() or mark
        yield CallBlock(opening, closing, read_named_json(mark), before_json=mark)


def _around_python(text: str, start: int) -> Iterator[Block]:
    opening = _before(text, start).strip() if start >= 0 else ""
    is_list = opening.endswith("[")
    opening = opening.removesuffix("[").strip()
    if opening:
        closing = text[text.rfind(")") + 1 :].strip()
        closing = closing.removeprefix("]").strip() if is_list else closing
        if closing:
            yield CallBlock(opening, closing, read_python, PythonStrings)


def _before(text: str, end: int) -> str:
    """Return the text right before a call, after content and thoughts."""
    return text[:end].rpartition(_SAID)[2].rpartition(_THOUGHT)[2]


def _calls(parser: Parser, text: str) -> list[FoundCall]:
    pieces = [*parser.feed(text), *parser.flush()]
    return [piece for piece in pieces if isinstance(piece, FoundCall)]


def _json_with(text: str, number: str) -> tuple[int, int] | None:
    """Return start and end of the first JSON value that contains a number."""
    decoder = json.JSONDecoder()
    for position, character in enumerate(text):
        if character not in "{[":
            continue
        try:
            _, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue
        if number in text[position:end]:
            return position, end
    return None
