"""Pipelines of a Go template: commands, operands and the variables that they may use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from chaski.errors import TemplateError
from chaski.text.template.go import literals, syntax
from chaski.text.template.go.cursor import TokenCursor
from chaski.text.template.go.lexer import TokenKind

KEYWORDS = {"block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"}

LiteralValue = TypeVar("LiteralValue")

_WORDS: dict[str, syntax.Operand] = {
    "nil": syntax.Nil(),
    "true": syntax.Constant(True),
    "false": syntax.Constant(False),
}
_STARTS_OPERAND = {
    TokenKind.CHARACTER,
    TokenKind.DOT,
    TokenKind.FIELD,
    TokenKind.LEFT,
    TokenKind.NUMBER,
    TokenKind.STRING,
    TokenKind.VARIABLE,
    TokenKind.WORD,
}


class Expressions:
    """Parses pipelines from a cursor. `variables` are those in scope, the innermost last."""

    def __init__(self, cursor: TokenCursor, functions: Collection[str]) -> None:
        self._cursor = cursor
        self._functions = functions
        self.variables = ["$"]

    def pipe(self, end: TokenKind, most_variables: int = 1) -> syntax.Pipe:
        """A pipeline with its end, `}}` or `)`."""
        self._cursor.skip_space()
        line = self._cursor.peek().line
        variables, assigns = self._declared(most_variables)
        commands: list[syntax.Command] = []
        while True:
            self._cursor.skip_space()
            token = self._cursor.peek()
            if token.kind is end:
                break
            if token.kind not in _STARTS_OPERAND:
                self._cursor.fail(f"unexpected {token.text!r} in an action")
            commands.append(self._command(first=not commands))
        if not commands:
            self._cursor.fail("an action needs a value")
        self._cursor.next()
        self.variables += variables
        return syntax.Pipe(line, variables, assigns, tuple(commands))

    def _declared(self, most: int) -> tuple[tuple[str, ...], bool]:
        """Parse `$a, $b :=` or `$a =` at the start of a pipeline; read nothing if it is not there."""
        start = self._cursor.mark()
        names: list[str] = []
        while self._cursor.peek().kind is TokenKind.VARIABLE:
            names.append(self._cursor.next().text)
            self._cursor.skip_space()
            token = self._cursor.next()
            if token.kind in (TokenKind.DECLARE, TokenKind.ASSIGN):
                self._cursor.skip_space()
                return tuple(names), token.kind is TokenKind.ASSIGN
            if token.text != ",":
                break
            if len(names) == most:
                self._cursor.fail("too many variables before :=; only range may have two")
            self._cursor.skip_space()
        if len(names) > 1 or (names and self._cursor.last().text == ","):
            self._cursor.fail("expected := after the variables of range")
        self._cursor.go_back(start)
        return (), False

    def _command(self, first: bool) -> syntax.Command:
        operands: list[syntax.Operand] = []
        while True:
            self._cursor.skip_space()
            if self._cursor.peek().kind in _STARTS_OPERAND:
                operands.append(self._operand())
            token = self._cursor.peek()
            if token.kind is TokenKind.PIPE:
                self._cursor.next()
                break
            if token.kind in (TokenKind.CLOSE, TokenKind.RIGHT):
                break
            if token.kind is not TokenKind.SPACE:
                self._cursor.fail(
                    f"unexpected {token.text!r} after an operand; a blank must separate operands"
                )
        if not first and isinstance(operands[0], syntax.Dot | syntax.Nil | syntax.Constant):
            self._cursor.fail("only a function can take the value of the pipeline before it")
        return syntax.Command(tuple(operands))

    def _operand(self) -> syntax.Operand:
        """A term with the fields that follow it without a blank."""
        operand = self._term()
        fields: list[str] = []
        while self._cursor.peek().kind is TokenKind.FIELD:
            fields.append(self._cursor.next().text[1:])
        if not fields:
            return operand
        match operand:
            case syntax.Field():
                return syntax.Field((*operand.names, *fields))
            case syntax.Variable():
                return syntax.Variable(operand.name, tuple(fields))
            case syntax.Dot() | syntax.Nil() | syntax.Constant():
                self._cursor.fail(f"unexpected .{fields[0]} behind a literal or a dot")
        return syntax.Chain(operand, tuple(fields))

    def _term(self) -> syntax.Operand:
        token = self._cursor.next()
        match token.kind:
            case TokenKind.DOT:
                return syntax.Dot()
            case TokenKind.FIELD:
                return syntax.Field((token.text[1:],))
            case TokenKind.VARIABLE:
                return self._variable(token.text)
            case TokenKind.STRING:
                return syntax.Constant(self.literal(literals.unquote, token.text))
            case TokenKind.CHARACTER:
                return syntax.Constant(self.literal(literals.character, token.text))
            case TokenKind.NUMBER:
                return syntax.Constant(self.literal(literals.number, token.text))
            case TokenKind.LEFT:
                return self._parenthesized()
            case _:
                return self._word(token.text)

    def _variable(self, name: str) -> syntax.Variable:
        if name not in self.variables:
            self._cursor.fail(f"the variable {name} is not defined here; declare it with {name} := …")
        return syntax.Variable(name)

    def _parenthesized(self) -> syntax.Pipe:
        self._cursor.enter()
        pipe = self.pipe(TokenKind.RIGHT)
        self._cursor.leave()
        return pipe

    def _word(self, word: str) -> syntax.Operand:
        if word in _WORDS:
            return _WORDS[word]
        if word in KEYWORDS:
            self._cursor.fail(f"unexpected keyword {word}")
        if word not in self._functions:
            known = ", ".join(sorted(self._functions))
            self._cursor.fail(f"there is no function {word!r}; templates know {known}")
        return syntax.Function(word)

    def literal(self, read: Callable[[str], LiteralValue], text: str) -> LiteralValue:
        """Return the value of a literal."""
        try:
            return read(text)
        except TemplateError as error:
            self._cursor.fail(str(error))
