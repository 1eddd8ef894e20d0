"""Probes: small conversations with words that no template contains, which show what a template supports.

A template may mention features that it does not support: it reads a message's `tools`, or a comment names
thinking. So the probes never search the template; they search the rendered text for the conversation's words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from chaski.errors import TemplateError

__all__ = ["Probe", "Rendering", "end_of_answer", "end_of_thought", "knows_role", "shows_tools", "thinks"]

Message = Mapping[str, Any]


class Rendering(Protocol):
    """A function that renders a conversation with template variables. Raises TemplateError."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, /, **variables: object
    ) -> str: ...


class Probe(Struct, frozen=True):
    """A conversation, and those of its words that a rendering must contain."""

    messages: Sequence[Message]
    words: Sequence[str]

    def is_shown(self, text: str) -> bool:
        """Return whether a rendering contains all words."""
        return all(word in text for word in self.words)


def _said(role: str, word: str) -> Message:
    return {"role": role, "content": word}


def _call(call_id: str, city: str = "qcityone") -> dict[str, Any]:
    function = {"name": "qweather", "arguments": {"city": city}}
    return {"type": "function", "id": call_id, "function": function}


def _calling(*calls: Mapping[str, Any], **more: str) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def _result(call_id: str, word: str = "qresultone") -> Message:
    named = {"tool_call_id": call_id} if call_id else {}
    return {"role": "tool", "content": word, "name": "qweather", **named}


_USER, _AGAIN, _ANSWER = _said("user", "quser"), _said("user", "qagain"), _said("assistant", "qanswer")
_SYSTEM, _LATE = _said("system", "qsystem"), _said("system", "qlate")
_THOUGHT = {"thinking": "qthought", "reasoning_content": "qthought"}
_SHORT, _OTHER = "abcdefghi", "abcdefghj"
_BROKEN = {
    "type": "function",
    "id": _SHORT,
    "function": {"name": "qweather", "arguments": '{"city": qbroken'},
}
_CALLED = ("quser", "qweather", "qcityone", "qresultone", "qanswer", "qagain")


def _called(call: Message, *results: Message) -> Sequence[Message]:
    return [_USER, call, *results, _ANSWER, _AGAIN]


USERS = Probe([_USER, _AGAIN], ["quser", "qagain"])
SYSTEM = Probe([_SYSTEM, _USER], ["qsystem", "quser"])
ONLY_SYSTEM = Probe([_SYSTEM], ["qsystem"])
SYSTEMS = Probe([_SYSTEM, _LATE, _USER], ["qsystem", "qlate", "quser"])
LATE_SYSTEM = Probe(
    [_SYSTEM, _USER, _ANSWER, _LATE, _AGAIN], ["qsystem", "quser", "qanswer", "qlate", "qagain"]
)
SYSTEM_BETWEEN = Probe(
    [_SYSTEM, _USER, _ANSWER, _LATE, _said("assistant", "qlast"), _AGAIN],
    ["qsystem", "quser", "qanswer", "qlate", "qlast", "qagain"],
)
DEVELOPER = Probe([_said("developer", "qsystem"), _USER], ["qsystem", "quser"])
CALL = Probe(_called(_calling(_call(_SHORT)), _result(_SHORT)), _CALLED)
CALL_ITSELF = Probe(CALL.messages, ["qcityone"])
CALL_WITH_NAME = Probe(CALL.messages, ["qweather", "qcityone", "qresultone"])
CALL_WITH_LONG_ID = Probe(_called(_calling(_call("call_qlong")), _result("call_qlong")), _CALLED)
CALL_WITHOUT_ID = Probe(_called(_calling(_call("")), _result("")), _CALLED)
CALL_IN_BROKEN_JSON = Probe(_called(_calling(_BROKEN), _result(_SHORT)), ["qbroken", "qresultone", "qagain"])
CALL_WITH_TEXT = Probe(_called({**_calling(_call(_SHORT)), "content": "qtext"}, _result(_SHORT)), _CALLED)
CALL_WITH_TEXT_AND_THOUGHT = Probe(
    _called({**_calling(_call(_SHORT), **_THOUGHT), "content": "qtext"}, _result(_SHORT)), _CALLED
)
WORDS_AND_CALL = Probe(
    [_USER, _said("assistant", "qtext"), _calling(_call(_SHORT)), _result(_SHORT), _ANSWER, _AGAIN], _CALLED
)
CALLS = Probe(
    _called(
        _calling(_call(_SHORT), _call(_OTHER, "qcitytwo")), _result(_SHORT), _result(_OTHER, "qresulttwo")
    ),
    [*_CALLED, "qcitytwo", "qresulttwo"],
)
RESULT = Probe(CALL.messages, ["qresultone"])
ORPHAN = Probe([_USER, _result(_SHORT), _ANSWER, _AGAIN], ["quser", "qresultone", "qanswer", "qagain"])
RESULT_WITH_COMMENT = Probe(
    [_USER, _calling(_call(_SHORT)), _result(_SHORT), _AGAIN], ["qresultone", "qagain"]
)

TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "qtool",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"qkey": {"type": "string", "description": "The key."}},
            "required": ["qkey"],
        },
    },
}
"""A tool that no message of a probe calls."""

# Conversations that end where a template may still show a thought of the current turn.
_THOUGHTFUL = (
    [_USER, {**_ANSWER, **_THOUGHT}, _AGAIN],
    [_USER, {**_ANSWER, **_THOUGHT}],
    [_USER, _calling(_call(_SHORT), **_THOUGHT), _result(_SHORT)],
)
_THOUGHT_PARTS = [{"type": "thinking", "thinking": "qthought"}, {"type": "text", "text": "qanswer"}]
# Conversations with an answer after a thought, the likeliest to be shown first.
_THOUGHT_OUT = (
    [_USER, {**_ANSWER, **_THOUGHT}],
    [_USER, {**_ANSWER, **_THOUGHT}, _AGAIN],
    [_USER, {**_ANSWER, "content": _THOUGHT_PARTS}, _AGAIN],
)
# A prompt that ends with the opening of a thought, such as `<think>`.
_OPENED = re.compile(r"[<\[][^<>\[\]]*(?:think|thought)[^<>\[\]]*[>\]]\s*\Z", re.IGNORECASE)


def shows_tools(render: Rendering) -> bool:
    """Return whether the text of a conversation contains its tools."""
    return any("qtool" in _text(render, probe.messages, [TOOL]) for probe in (SYSTEM, USERS, CALL)) or (
        "qtool" in _text(render, [_USER], [TOOL])
    )


def thinks(render: Rendering, tags: tuple[str, str] | None) -> bool:
    """Return whether a template accepts or writes thoughts; it may put `tags` around them."""
    switched = [_text(render, [_USER], enable_thinking=on, thinking=on) for on in (False, True)]
    levels = [_text(render, [_USER], reasoning_effort=level) for level in ("low", "high")]
    if len(set(switched)) > 1 or len(set(levels)) > 1 or _OPENED.search(switched[1]):
        return True
    if any("qthought" in _text(render, messages, enable_thinking=True) for messages in _THOUGHTFUL):
        return True
    return (_shows_part(render, "thinking") and not _shows_part(render, "qpart")) or (
        tags is not None and _drops_thoughts(render, tags)
    )


def end_of_thought(render: Rendering, closing: str) -> str | None:
    """Return what a template writes from the end of a thought to the text after it, with its blanks.

    `closing` is part of it. None if the template does not show thoughts.
    """
    for messages in _THOUGHT_OUT:
        text = _text(render, messages, enable_thinking=True, thinking=True, add_generation_prompt=False)
        between, answer, _ = text.partition("qthought")[2].partition("qanswer")
        if answer and closing in between:
            return between
    return None


def end_of_answer(render: Rendering) -> str:
    """Return what a template writes between an answer and the text of the next turn."""
    text = _text(render, [_USER, _ANSWER, _AGAIN])
    between, again, _ = text.rpartition("qanswer")[2].partition("qagain")
    return between if again else ""


def knows_role(render: Rendering, role: str) -> bool:
    """Return whether a template treats a role differently from a role that it cannot know."""
    own, other = (
        _text(render, [_USER, _said(name, "qsaid"), _ANSWER, _AGAIN]).replace(name, "")
        for name in (role, "qrole")
    )
    return "qsaid" in own and own != other


def _shows_part(render: Rendering, kind: str) -> bool:
    """Return whether a template writes an answer's parts of a kind such as `thinking`."""
    answer = {"role": "assistant", "content": [{"type": kind, kind: "qthought"}]}
    return "qthought" in _text(render, [_USER, answer, _AGAIN])


def _drops_thoughts(render: Rendering, tags: tuple[str, str]) -> bool:
    """Return whether a template drops the thought of an earlier answer that contains it as text."""
    answer = _said("assistant", f"{tags[0]}qthought{tags[1]}qanswer")
    text = _text(render, [_USER, answer, _AGAIN, _said("assistant", "qlast"), _AGAIN])
    return "qanswer" in text and "qthought" not in text


def _text(
    render: Rendering,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: object,
) -> str:
    try:
        return render(messages, tools, **variables)
    except TemplateError:
        return ""
