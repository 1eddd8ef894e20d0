"""A cursor over the tokens of a Go template, with lookahead; its errors name the line."""

from __future__ import annotations

from typing import NoReturn

from chaski.errors import TemplateError
from chaski.text.template.go.lexer import Token, TokenKind, tokens

_DEEPEST = 100  # nested parentheses and blocks


class TokenCursor:
    """Reads tokens in order."""

    def __init__(self, source: str) -> None:
        self._tokens = list(tokens(source))
        self._position = 0
        self._depth = 0

    def peek(self) -> Token:
        """Return the next token without reading it."""
        return self._tokens[self._position]

    def next(self) -> Token:
        """Read and return a token; the END stays."""
        token = self._tokens[self._position]
        self._position += token.kind is not TokenKind.END
        return token

    def last(self) -> Token:
        """Return the token that was read last."""
        return self._tokens[max(self._position - 1, 0)]

    def mark(self) -> int:
        """Return the position, for `go_back`."""
        return self._position

    def go_back(self, mark: int) -> None:
        """Return to a position of `mark`."""
        self._position = mark

    def skip_space(self) -> None:
        """Read blanks."""
        while self.peek().kind is TokenKind.SPACE:
            self._position += 1

    def expect(self, kind: TokenKind, where: str) -> None:
        """Read blanks and a token of this kind; fail for another kind."""
        self.skip_space()
        if self.next().kind is not kind:
            self.fail(f"unexpected {self.last().text!r} {where}")

    def keyword(self) -> str:
        """Return the word at the start of the next action, or an empty text, without reading it."""
        if self.peek().kind is not TokenKind.OPEN:
            return ""
        ahead = self._position + 1
        while self._tokens[ahead].kind is TokenKind.SPACE:
            ahead += 1
        return self._tokens[ahead].text if self._tokens[ahead].kind is TokenKind.WORD else ""

    def skip_keyword(self) -> None:
        """Read the opening of an action and the word at its start."""
        self.next()
        self.skip_space()
        self.next()

    def enter(self) -> None:
        """Enter a nested level."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self.fail(f"more than {_DEEPEST} blocks and parentheses are nested")

    def leave(self) -> None:
        """Leave a nested level."""
        self._depth -= 1

    def fail(self, message: str) -> NoReturn:
        """Raise a `TemplateError` for the token that was read last."""
        raise TemplateError(f"the chat template, line {self.last().line}: {message}")
