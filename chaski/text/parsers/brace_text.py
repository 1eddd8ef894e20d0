"""Gemma's calls: `call:f{a:<escape>text<escape>,b:3}`, with a mark on both sides of each text."""

from __future__ import annotations

import re
from typing import Any

from chaski.text.parsers.json_text import load_json
from chaski.text.parsers.pieces import FoundCall
from chaski.text.parsers.python_text import WORDS

_HEAD = re.compile(r"call:\s*([\w.\-]+)\s*(?=\{)")
_BARE = re.compile(r"[^,{}\[\]]*")
_MAX_DEPTH = 64


def load_braces(text: str, quote: str) -> FoundCall:
    """Return the call that forms the whole text. Raises ValueError for anything else."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("a call must begin with its name")
    reader = _Braces(text, quote, head.end())
    arguments = reader.value(0)
    if reader.position < len(text) or not isinstance(arguments, dict):
        raise ValueError("a call must end with its arguments")
    return FoundCall(head[1], arguments)


class _Braces:
    """Reads values in order. A mark ends a text if the object or list can continue after it."""

    def __init__(self, text: str, quote: str, position: int) -> None:
        self._text = text
        self._quote = quote
        self.position = position

    def value(self, depth: int) -> Any:
        """Read a value and the blanks after it."""
        if depth > _MAX_DEPTH:
            raise ValueError("too deep")
        self._skip()
        match self._text[self.position : self.position + 1]:
            case "{":
                return dict(self._items("}", depth))
            case "[":
                return [item for _, item in self._items("]", depth)]
            case _ if self._text.startswith(self._quote, self.position):
                return self._quoted()
            case '"':
                return self._json_text()
            case _:
                return self._bare()

    def _items(self, closing: str, depth: int) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        self.position += 1
        self._skip()
        while not self._take(closing):
            if found and not self._take(","):
                raise ValueError("a comma is missing")
            key = self._key() if closing == "}" else ""
            found.append((key, self.value(depth + 1)))
        return found

    def _key(self) -> str:
        self._skip()
        if self._text.startswith(self._quote, self.position):
            key = self._quoted(":")
        else:
            end = self._text.find(":", self.position)
            key = self._text[self.position : end].strip().strip('"') if end >= 0 else ""
            self.position = end
        if not key or not self._take(":"):
            raise ValueError("a key is missing")
        return key

    def _quoted(self, behind: str = ",}]") -> str:
        start = end = self.position + len(self._quote)
        while True:
            end = self._text.find(self._quote, end)
            if end < 0:
                raise ValueError("a text is not closed")
            self.position = end + len(self._quote)
            self._skip()
            if self._text[self.position : self.position + 1] in tuple(behind):
                return self._text[start:end]
            end += 1

    def _json_text(self) -> str:
        end = self.position
        while (end := self._text.find('"', end + 1)) >= 0:
            try:
                value = str(load_json(self._text[self.position : end + 1]))
            except ValueError:
                continue
            self.position = end + 1
            self._skip()
            return value
        raise ValueError("a text is not closed")

    def _bare(self) -> Any:
        match = _BARE.match(self._text, self.position)
        word = match[0].strip() if match else ""
        if not word or self._quote in word:
            raise ValueError("a value is missing")
        self.position += len(match[0]) if match else 0
        if word in WORDS:
            return WORDS[word]
        try:
            return load_json(word)
        except ValueError:
            return word

    def _take(self, mark: str) -> bool:
        found = self._text.startswith(mark, self.position)
        if found:
            self.position += len(mark)
            self._skip()
        return found

    def _skip(self) -> None:
        while self.position < len(self._text) and self._text[self.position].isspace():
            self.position += 1
