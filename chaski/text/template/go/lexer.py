"""Splitting of a Go template into tokens. Blanks inside actions are tokens, since they separate operands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from chaski.errors import TemplateError


class TokenKind(Enum):
    """The kind of a token."""

    TEXT = auto()
    OPEN = auto()
    CLOSE = auto()
    SPACE = auto()
    DECLARE = auto()
    ASSIGN = auto()
    PIPE = auto()
    LEFT = auto()
    RIGHT = auto()
    STRING = auto()
    CHARACTER = auto()
    NUMBER = auto()
    VARIABLE = auto()
    FIELD = auto()
    DOT = auto()
    WORD = auto()
    OTHER = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the source, and the line where it starts."""

    kind: TokenKind
    text: str
    line: int


_BLANK = " \t\r\n"
# An action may trim the text before it and after it: `{{- ` and ` -}}`.
_OPEN = re.compile(r"\{\{(-(?=[ \t\r\n]))?")
_CLOSE = re.compile(r"([ \t\r\n]+-)?\}\}")
_COMMENT = re.compile(r"(?<=\{\{)/\*|(?<=\{\{-)[ \t\r\n]/\*")
_COMMENT_END = re.compile(r"\*/([ \t\r\n]-)?\}\}")
_REAL = (
    r"[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?|0[oO][0-7_]*|0[bB][01_]*"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)"
)
_PATTERNS = {
    TokenKind.SPACE: r"[ \t\r\n]+",
    TokenKind.DECLARE: r":=",
    TokenKind.ASSIGN: r"=",
    TokenKind.PIPE: r"\|",
    TokenKind.LEFT: r"\(",
    TokenKind.RIGHT: r"\)",
    TokenKind.STRING: r'"(?:[^"\\\n]|\\[^\n])*"|`[^`]*`',
    TokenKind.CHARACTER: r"'(?:[^'\\\n]|\\[^\n])*'",
    TokenKind.NUMBER: rf"(?=[+-]|\.?[0-9]){_REAL}(?:[+-]{_REAL}i|i)?",
    TokenKind.VARIABLE: r"\$\w*",
    TokenKind.FIELD: r"\.\w+",
    TokenKind.DOT: r"\.",
    TokenKind.WORD: r"\w+",
    TokenKind.OTHER: r"[!#%&*,/;<>?@\[\\\]^{}~]",
}
_TOKEN = re.compile("|".join(f"(?P<{kind.name}>{pattern})" for kind, pattern in _PATTERNS.items()))
_NAMES = {TokenKind.VARIABLE, TokenKind.FIELD, TokenKind.DOT, TokenKind.WORD}
# Characters that may follow a name. As in Go, `$x+2` is an error and not two operands.
_AFTER_NAME = re.compile(r"[ \t\r\n.,|:()]|\}\}|\Z")
_UNFINISHED = {'"': "a string is not closed", "`": "a string is not closed", "'": "a character is not closed"}


def tokens(source: str) -> Iterator[Token]:
    """Yield all tokens, an END last. Raises `TemplateError` for a piece that is not a token."""
    return _Lexer(source).tokens()


class _Lexer:
    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        self._line = 1
        self._trims = False

    def tokens(self) -> Iterator[Token]:
        while (opening := _OPEN.search(self._source, self._position)) is not None:
            yield from self._text(opening.start(), trims_end=opening[1] is not None)
            token = self._advance(TokenKind.OPEN, opening)
            if (comment := _COMMENT.match(self._source, self._position)) is not None:
                self._skip(comment)
            else:
                yield token
                yield from self._inside()
        yield from self._text(len(self._source), trims_end=False)
        yield Token(TokenKind.END, "", self._line)

    def _text(self, end: int, trims_end: bool) -> Iterator[Token]:
        """Yield the text up to an action, without blanks that an adjacent action trims."""
        text = self._source[self._position : end]
        kept = text.lstrip(_BLANK) if self._trims else text
        line = self._line + text[: len(text) - len(kept)].count("\n")
        kept = kept.rstrip(_BLANK) if trims_end else kept
        if kept:
            yield Token(TokenKind.TEXT, kept, line)
        self._position = end
        self._line += text.count("\n")

    def _skip(self, start: re.Match[str]) -> None:
        """Skip a comment, which must fill its action."""
        end = self._source.find("*/", start.end())
        closing = _COMMENT_END.match(self._source, end) if end >= 0 else None
        if closing is None:
            raise self._error("a comment must end with */ right before }}")
        self._line += self._source.count("\n", self._position, closing.end())
        self._position = closing.end()
        self._trims = closing[1] is not None

    def _inside(self) -> Iterator[Token]:
        """Yield the tokens of an action, its CLOSE last."""
        while (closing := _CLOSE.match(self._source, self._position)) is None:
            match = _TOKEN.match(self._source, self._position)
            if match is None:
                raise self._error(self._fault())
            kind = TokenKind[match.lastgroup or ""]
            self._check(kind, match)
            yield self._advance(kind, match)
        self._trims = closing[1] is not None
        yield self._advance(TokenKind.CLOSE, closing)

    def _check(self, kind: TokenKind, match: re.Match[str]) -> None:
        """Refuse a character after a name or a number that looks like part of it."""
        after = self._source[match.end() : match.end() + 1]
        name = match.group().lstrip(".$")
        if kind in _NAMES and not (_AFTER_NAME.match(self._source, match.end()) and _is_name(name)):
            raise self._error(f"bad character {after!r} after {match.group()!r}")
        if kind is TokenKind.NUMBER and _is_name(after) and after:
            raise self._error(f"bad number {match.group() + after!r}")

    def _fault(self) -> str:
        character = self._source[self._position : self._position + 1]
        if not character:
            return "an action is not closed with }}"
        if character == ":":
            return "expected := to declare a variable"
        return _UNFINISHED.get(character, f"unexpected character {character!r} in an action")

    def _advance(self, kind: TokenKind, match: re.Match[str]) -> Token:
        token = Token(kind, match.group(), self._line)
        self._line += token.text.count("\n")
        self._position = match.end()
        return token

    def _error(self, message: str) -> TemplateError:
        return TemplateError(f"the chat template, line {self._line}: {message}")


def _is_name(text: str) -> bool:
    """Return whether a text has only letters, digits and underscores; Go allows fewer digits than `\\w`."""
    return all(character == "_" or character.isalpha() or character.isdecimal() for character in text)
