"""The place in the tokens of a Go template, with a look ahead; errors name their line."""

from __future__ import annotations

from typing import NoReturn

from chaski.errors import TemplateError
from chaski.text.template.go.lexer import Token, TokenKind, tokens

_DEEPEST = 100  # parentheses and blocks inside each other


class TokenCursor:
    """Reads tokens one after the other."""

    def __init__(self, source: str) -> None:
        self._tokens = list(tokens(source))
        self._position = 0
        self._depth = 0

    def peek(self) -> Token:
        """The next token, not read."""
        return self._tokens[self._position]

    def next(self) -> Token:
        """Read a token; the END stays."""
        token = self._tokens[self._position]
        self._position += token.kind is not TokenKind.END
        return token

    def last(self) -> Token:
        """The token that was read last."""
        return self._tokens[max(self._position - 1, 0)]

    def mark(self) -> int:
        """The place, for `go_back`."""
        return self._position

    def go_back(self, mark: int) -> None:
        """Read again from the mark."""
        self._position = mark

    def skip_space(self) -> None:
        """Read blanks."""
        while self.peek().kind is TokenKind.SPACE:
            self._position += 1

    def expect(self, kind: TokenKind, where: str) -> None:
        """Read blanks and a token of this kind."""
        self.skip_space()
        if self.next().kind is not kind:
            self.fail(f"unexpected {self.last().text!r} {where}")

    def keyword(self) -> str:
        """The word at the start of the action that begins here, or nothing; nothing is read."""
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
        """Go one level deeper."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self.fail(f"more than {_DEEPEST} blocks and parentheses stand inside each other")

    def leave(self) -> None:
        """Come back from a level."""
        self._depth -= 1

    def fail(self, message: str) -> NoReturn:
        """Raise a `TemplateError` for the token that was read last."""
        raise TemplateError(f"the chat template, line {self.last().line}: {message}")
