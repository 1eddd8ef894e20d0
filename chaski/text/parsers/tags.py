"""Calls in tags with unescaped values: `<function=f><parameter=p>value</parameter></function>`.

Such a value may contain the very tags that end it. So a closing tag ends a value only if the call continues
after it: with another parameter, or with the end of the function and of the block. If both readings are
possible, tags that are opened and closed inside a value belong to it, and an end does not count if other text
and another end follow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from msgspec import Struct

from chaski.text.parsers.blocks import Found
from chaski.text.parsers.elements import read_element
from chaski.text.parsers.json_text import JsonScanner, load_json
from chaski.text.parsers.pieces import FoundCall
from chaski.text.parsers.readers import read_arguments, read_json
from chaski.text.parsers.schema import Tools, names_of, parameters_of, typed

_MAX_NAME = 256
_NAME = re.compile(r"[\w.\-/]*")
_CDATA = ("<![CDATA[", "]]>")


class Opening(Struct, frozen=True):
    """An opening tag: `before`, the name, `quote` and attributes if there is a quote, then `end`.

    Without `end`, the name extends over all name characters. `value` is a tag between name and value.
    """

    before: str
    end: str = ""
    quote: str = ""
    value: str = ""


class TagBlock(Struct, frozen=True):
    """A notation of calls in tags.

    function, closing    tags around a call
    parameter, behind    tags around a value; `{}` in `behind` is the parameter's name
    block                tags around all calls, if there are any
    framing              a line break on both sides of a value belongs to its tags
    nested               tag before each tag of an array or object that is written as tags
    orphan               closing tag after the block, without an opening tag
    ends                 marks after the block with which the answer continues
    """

    function: Opening
    closing: str
    parameter: Opening
    behind: str
    block: tuple[str, str] | None = None
    framing: str = ""
    nested: str = ""
    orphan: str = ""
    ends: tuple[str, ...] = ()
    is_bare: bool = False

    @property
    def opening(self) -> str:
        """Return the text that begins the block."""
        return self.function.before if self.block is None else self.block[0]

    @property
    def marks(self) -> tuple[str, ...]:
        """Return all tags, for tests of noise."""
        own = (self.function.before, self.closing, self.parameter.before, self.behind.replace("{}", "p"))
        return (*own, *(self.block or ()))

    def begin(self, tools: Tools) -> TagReader:
        """Return a reader of one block."""
        return TagReader(self, tools)


class TagReader:
    """Reads one block from a text that grows after its opening."""

    def __init__(self, block: TagBlock, tools: Tools) -> None:
        self._block = block
        self._tools = tools
        self._machine = _Machine(block, tools)

    def find(self, text: str, final: bool) -> Found | None:
        """Return the end of the block and its calls; None if they are not certain yet."""
        found = self._machine.find(text, final)
        if found is not None or not final:
            return found
        for options in ({"nests": False}, {"nests": False, "lenient": True}):
            found = _Machine(self._block, self._tools, **options).find(text, True)
            if found is not None and found.calls is not None:
                return found
        return Found(_end_of_text(self._block, text), None)


class _State(Enum):
    BLOCK = auto()
    FUNCTION = auto()
    VALUE = auto()
    CLOSED = auto()
    BEHIND = auto()


class _Wait(Exception):  # noqa: N818 - not an error
    """More text is needed."""


class _Machine:
    """One reading of a block, in one pass.

    If `nests`, parameters that are opened and closed inside a value belong to it. If `lenient`, a value also
    ends if its closing tag is missing.
    """

    def __init__(self, block: TagBlock, tools: Tools, nests: bool = True, lenient: bool = False) -> None:
        self._block = block
        self._tools = tools
        self._names = names_of(tools)
        self._nests = nests
        self._lenient = lenient
        self._state = _State.BLOCK
        self._position = 0 if block.block is None else len(block.block[0])
        self._calls: list[FoundCall] = []
        self._name: str | None = None
        self._arguments: dict[str, Any] = {}
        self._value: tuple[str, str, int] | None = None  # name, attributes, start
        self._value_end = 0
        self._resume = 0  # where a value continues if it has not ended
        self._depth = 0
        self._candidate: Found | None = None
        self._scanner: JsonScanner | None = None

    def find(self, text: str, final: bool) -> Found | None:
        """Return the block's end and calls; None if they are not certain or, if `final`, do not exist."""
        self._text, self._final = text, final
        steps: Mapping[_State, Callable[[], Found | None]] = {
            _State.BLOCK: self._in_block,
            _State.FUNCTION: self._in_function,
            _State.VALUE: self._in_value,
            _State.CLOSED: self._closed,
            _State.BEHIND: self._behind_block,
        }
        try:
            while True:
                found = steps[self._state]()
                if found is not None:
                    return found
        except _Wait:
            if not final:
                return None
        if self._candidate is not None:
            return self._candidate
        # Only the closing tag of the block may be missing: a function without an end may lack arguments.
        has_ended = self._state in (_State.BLOCK, _State.CLOSED) and self._name is not None
        return self._made(len(text)) if has_ended and not self._rest().strip() else None

    def _in_block(self) -> Found | None:
        """Read the state before a function."""
        start = self._after_blank(self._position)
        if (found := self._json_call(start)) is not None:
            return found
        opened = self._opened(self._block.function, start)
        if opened is not None:
            name, _, self._position = opened
            self._commit_call()
            self._name, self._arguments, self._value = name, {}, None
            self._state = _State.FUNCTION
            return None
        if self._block.block is not None and self._calls_made and self._matches(self._block.block[1], start):
            self._position = start + len(self._block.block[1])
            self._state = _State.BEHIND
            return None
        return self._not_here()

    def _in_function(self) -> Found | None:
        """Read the state after the name of a function or after a value."""
        start = self._after_blank(self._position)
        if self._matches(self._block.closing, start):
            self._position = start + len(self._block.closing)
            self._state = _State.CLOSED
            return None
        opened = self._opened(self._block.parameter, start)
        if opened is not None and self._is_new(opened[0]):
            name, attributes, end = opened
            self._commit_value()
            self._value, self._depth = (name, attributes, end), 0
            self._position = self._resume = end
            self._state = _State.VALUE
            return None
        if self._value is None and not self._arguments and self._text[start] == "{":
            return self._json_arguments(start)
        if self._lenient and self._block.block and self._matches(self._block.block[1], start):
            self._position = start
            self._state = _State.CLOSED
            return None
        return self._not_here()

    def _in_value(self) -> Found | None:
        """Look for the end of a value, or for an opening that belongs to it."""
        assert self._value is not None
        closing = self._block.behind.replace("{}", self._value[0])
        before = self._block.parameter.before
        opening = (
            f"{before}{self._value[0]}{self._block.parameter.end}" if "{}" in self._block.behind else before
        )
        marks = (closing, opening, self._block.opening)
        if self._lenient:
            marks += (self._block.closing, *(self._block.block or ()))
        position, mark = self._next(marks)
        if mark == closing:
            self._close_value(position, position + len(closing))
        elif self._lenient and mark != self._block.opening:
            self._close_value(position, position)
        elif mark == opening:
            opened = self._opened(self._block.parameter, position)
            self._depth += opened is not None and self._nests
            self._position = position + len(opening)
        else:
            if self._candidate is not None and self._begins_call(position):
                return self._candidate
            self._position = position + len(mark)
        return None

    def _close_value(self, end: int, resume: int) -> None:
        assert self._value is not None
        text = self._text[self._value[2] : end]
        if text.startswith(_CDATA[0]) and not text.endswith(_CDATA[1]):
            self._position = resume
        elif self._depth > 0:
            self._depth -= 1
            self._position = resume
        else:
            self._value_end = end
            self._position = resume
            self._resume = max(resume, end + 1)
            self._state = _State.FUNCTION

    def _closed(self) -> Found | None:
        """Read the state after a function."""
        if self._block.block is None:
            self._state = _State.BEHIND
            return None
        start = self._after_blank(self._position)
        if self._matches(self._block.block[1], start):
            self._position = start + len(self._block.block[1])
            self._state = _State.BEHIND
            return None
        if self._opened(self._block.function, start) is not None:
            self._state = _State.BLOCK
            return None
        return self._not_here()

    def _behind_block(self) -> Found | None:
        """Read the state after a block: it has ended if the text ends or another call follows."""
        found = self._made(self._position)
        try:
            start = self._after_blank(self._position)
            if self._block.orphan and self._matches(self._block.orphan, start):
                start = self._after_blank(start + len(self._block.orphan))
            if self._begins_call(start):
                return found
        except _Wait:
            if self._final:
                return found
            raise
        if self._value is None or self._lenient:
            return found
        self._candidate = found
        return self._not_here()

    def _json_call(self, start: int) -> Found | None:
        """Return a call that is JSON in tags; None if there is none."""
        block = self._block
        if block.block is None:
            if block.function.end or not self._matches(block.function.before, start):
                return None
            start = self._after_blank(start + len(block.function.before))
        if self._text[start] != "{":
            return None
        closing = self._block.block[1] if self._block.block else self._block.closing
        end = self._json_end(start)
        calls = read_json(self._text[start:end], self._tools)
        try:
            behind = self._after_blank(end)
            end = behind + len(closing) if self._matches(closing, behind) else end
        except _Wait:
            if not self._final:
                raise
        return Found(end, None if calls is None else [*self._calls, *calls])

    def _json_arguments(self, start: int) -> Found | None:
        """Read the arguments of a function as one JSON object."""
        end = self._json_end(start)
        arguments = read_arguments(self._text[start:end], self._name or "", self._tools)
        if arguments is None:
            return Found(len(self._block.opening), None)
        self._arguments = dict(arguments)
        self._position = end
        return None

    def _json_end(self, start: int) -> int:
        if self._scanner is None:
            self._scanner, self._resume = JsonScanner(), start
        end = self._scanner.feed(self._text, self._resume, len(self._text))
        if end is None:
            self._resume = len(self._text)
            raise _Wait
        self._scanner = None
        return end

    def _begins_call(self, start: int) -> bool:
        """Return whether another call of a known tool, or a mark that ends the message, begins here."""
        if any(self._matches(mark, start) for mark in self._block.ends):
            return True
        if self._block.block is not None:
            if not self._matches(self._block.block[0], start):
                return False
            start = self._after_blank(start + len(self._block.block[0]))
            if self._text[start] == "{":
                return True
        opened = self._opened(self._block.function, start)
        return opened is not None and opened[0] in self._names

    def _not_here(self) -> Found | None:
        """Handle a missing tag: the value continues, or this is not a call."""
        if self._value is None:
            if self._candidate is not None:
                return self._candidate
            return Found(len(self._block.opening), None)
        self._state, self._position = _State.VALUE, self._resume
        return None

    @property
    def _calls_made(self) -> bool:
        return bool(self._calls) or self._name is not None

    def _is_new(self, name: str) -> bool:
        """Return whether the call still lacks this argument and its tool does not refuse it."""
        has = name in self._arguments or (self._value is not None and self._value[0] == name)
        return not has and not parameters_of(self._name or "", self._tools).refuses(name)

    def _commit_value(self) -> None:
        if self._value is not None:
            self._arguments[self._value[0]] = self._typed(self._value)
            self._value = None

    def _commit_call(self) -> None:
        if self._name is not None:
            self._commit_value()
            self._calls.append(FoundCall(self._name, self._arguments))

    def _made(self, end: int) -> Found:
        """Return all calls so far; they stay, since the last value may continue."""
        arguments = dict(self._arguments)
        if self._value is not None:
            arguments[self._value[0]] = self._typed(self._value)
        last = [] if self._name is None else [FoundCall(self._name, arguments)]
        return Found(end, [*self._calls, *last])

    def _typed(self, value: tuple[str, str, int]) -> Any:
        name, attributes, start = value
        text = self._text[start : self._value_end]
        if text.startswith(_CDATA[0]) and text.endswith(_CDATA[1]):
            return text[len(_CDATA[0]) : -len(_CDATA[1])]
        if self._block.framing:
            text = text.removeprefix(self._block.framing).removesuffix(self._block.framing)
        schema = parameters_of(self._name or "", self._tools).member(name)
        if self._block.nested and schema.kinds() != {"string"}:
            return read_element(text, self._block.nested, schema)
        if (kind := _TYPE.search(attributes)) is None:
            return typed(text, schema)
        if kind[2] in ("true", "string"):
            return text
        try:
            return load_json(text.strip())
        except (ValueError, RecursionError):
            return typed(text, schema)

    def _opened(self, tag: Opening, start: int) -> tuple[str, str, int] | None:
        """Return the name, attributes and end of the tag that opens at `start`; None if there is none."""
        if not self._matches(tag.before, start):
            return None
        begin = start + len(tag.before)
        if not tag.end:
            match = _NAME.match(self._text, self._after_blank(begin))
            assert match is not None
            if match.end() == len(self._text):
                self._wait()
            return (match[0], "", match.end()) if match[0] else None
        mark = tag.quote or tag.end
        end = self._text.find(mark, begin, begin + _MAX_NAME + len(mark))
        name = self._text[begin : begin + _MAX_NAME if end < 0 else end]
        if end < 0:
            if len(self._text) < begin + _MAX_NAME + len(mark) and "\n" not in name:
                self._wait()
            return None
        if "\n" in name or not name.strip() or ("<" in name and not tag.quote):
            return None
        attributes = ""
        if tag.quote:
            behind = end + len(tag.quote)
            end = self._text.find(tag.end, behind, behind + _MAX_NAME)
            if end < 0:
                if len(self._text) < behind + _MAX_NAME:
                    self._wait()
                return None
            attributes = self._text[behind:end]
        end += len(tag.end)
        if tag.value:
            end = self._after_blank(end)
            if not self._matches(tag.value, end):
                return None
            end += len(tag.value)
        return name.strip(), attributes, end

    def _matches(self, mark: str, start: int) -> bool:
        """Return whether the mark is at `start`. Raises _Wait if more text may complete it."""
        if self._text.startswith(mark, start):
            return True
        if len(self._text) - start < len(mark) and mark.startswith(self._text[start:]):
            self._wait()
        return False

    def _wait(self) -> None:
        """Raise _Wait unless the text has ended."""
        if not self._final:
            raise _Wait

    def _next(self, marks: tuple[str, ...]) -> tuple[int, str]:
        """Return the next of the marks and its position. Raises _Wait if there is none."""
        match = _any_of(marks).search(self._text, self._position)
        if match is None:
            self._position = max(self._position, len(self._text) - max(map(len, marks)) + 1)
            raise _Wait
        return match.start(), match[0]

    def _after_blank(self, position: int) -> int:
        """Return the position of the next character that is not blank. Raises _Wait if there is none."""
        while position < len(self._text) and self._text[position].isspace():
            position += 1
        if position >= len(self._text):
            raise _Wait
        return position

    def _rest(self) -> str:
        return self._text[self._position :]


_TYPE = re.compile(r'\b(string|type)="(\w+)"')


@lru_cache(maxsize=1024)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))


def _end_of_text(block: TagBlock, text: str) -> int:
    """Return how much of `text`, which is not a call, to show before the next search for calls."""
    closing = block.block[1] if block.block else block.closing
    found = text.find(closing)
    return found + len(closing) if found >= 0 else len(text)
