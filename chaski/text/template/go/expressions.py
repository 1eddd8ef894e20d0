"""Pipelines of a Go template: commands, operands and the variables that they may name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from chaski.errors import TemplateError
from chaski.text.template.go import literals
from chaski.text.template.go.cursor import Cursor
from chaski.text.template.go.lexer import Kind
from chaski.text.template.go.nodes import (
    Chain,
    Command,
    Constant,
    Dot,
    Field,
    Function,
    Nil,
    Operand,
    Pipe,
    Variable,
)

KEYWORDS = {"block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"}

Result = TypeVar("Result")

_WORDS: dict[str, Operand] = {"nil": Nil(), "true": Constant(True), "false": Constant(False)}
_STARTS_OPERAND = {
    Kind.CHARACTER,
    Kind.DOT,
    Kind.FIELD,
    Kind.LEFT,
    Kind.NUMBER,
    Kind.STRING,
    Kind.VARIABLE,
    Kind.WORD,
}


class Expressions:
    """Reads pipelines from a cursor. `variables` are those that can be seen here, the innermost last."""

    def __init__(self, cursor: Cursor, functions: Collection[str]) -> None:
        self._cursor = cursor
        self._functions = functions
        self.variables = ["$"]

    def pipe(self, end: Kind, most_variables: int = 1) -> Pipe:
        """A pipeline with its end, `}}` or `)`."""
        self._cursor.skip_space()
        line = self._cursor.peek().line
        variables, assigns = self._declared(most_variables)
        commands: list[Command] = []
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
        return Pipe(line, variables, assigns, tuple(commands))

    def _declared(self, most: int) -> tuple[tuple[str, ...], bool]:
        """`$a, $b :=` or `$a =` at the start of a pipeline; nothing read where there is none."""
        start = self._cursor.mark()
        names: list[str] = []
        while self._cursor.peek().kind is Kind.VARIABLE:
            names.append(self._cursor.next().text)
            self._cursor.skip_space()
            token = self._cursor.next()
            if token.kind in (Kind.DECLARE, Kind.ASSIGN):
                self._cursor.skip_space()
                return tuple(names), token.kind is Kind.ASSIGN
            if token.text != ",":
                break
            if len(names) == most:
                self._cursor.fail("too many variables before :=; only range may have two")
            self._cursor.skip_space()
        if len(names) > 1 or (names and self._cursor.last().text == ","):
            self._cursor.fail("expected := behind the variables of range")
        self._cursor.go_back(start)
        return (), False

    def _command(self, first: bool) -> Command:
        operands: list[Operand] = []
        while True:
            self._cursor.skip_space()
            if self._cursor.peek().kind in _STARTS_OPERAND:
                operands.append(self._operand())
            token = self._cursor.peek()
            if token.kind is Kind.PIPE:
                self._cursor.next()
                break
            if token.kind in (Kind.CLOSE, Kind.RIGHT):
                break
            if token.kind is not Kind.SPACE:
                self._cursor.fail(
                    f"unexpected {token.text!r} behind an operand; a blank must separate operands"
                )
        if not first and isinstance(operands[0], Dot | Nil | Constant):
            self._cursor.fail("only a function can take the value of the pipeline before it")
        return Command(tuple(operands))

    def _operand(self) -> Operand:
        """A term with the fields that follow it without a blank."""
        operand = self._term()
        fields: list[str] = []
        while self._cursor.peek().kind is Kind.FIELD:
            fields.append(self._cursor.next().text[1:])
        if not fields:
            return operand
        match operand:
            case Field():
                return Field((*operand.names, *fields))
            case Variable():
                return Variable(operand.name, tuple(fields))
            case Dot() | Nil() | Constant():
                self._cursor.fail(f"unexpected .{fields[0]} behind a literal or a dot")
        return Chain(operand, tuple(fields))

    def _term(self) -> Operand:
        token = self._cursor.next()
        match token.kind:
            case Kind.DOT:
                return Dot()
            case Kind.FIELD:
                return Field((token.text[1:],))
            case Kind.VARIABLE:
                return self._variable(token.text)
            case Kind.STRING:
                return Constant(self.literal(literals.unquote, token.text))
            case Kind.CHARACTER:
                return Constant(self.literal(literals.character, token.text))
            case Kind.NUMBER:
                return Constant(self.literal(literals.number, token.text))
            case Kind.LEFT:
                return self._parenthesized()
            case _:
                return self._word(token.text)

    def _variable(self, name: str) -> Variable:
        if name not in self.variables:
            self._cursor.fail(f"the variable {name} is not defined here; declare it with {name} := …")
        return Variable(name)

    def _parenthesized(self) -> Pipe:
        self._cursor.enter()
        pipe = self.pipe(Kind.RIGHT)
        self._cursor.leave()
        return pipe

    def _word(self, word: str) -> Operand:
        if word in _WORDS:
            return _WORDS[word]
        if word in KEYWORDS:
            self._cursor.fail(f"unexpected keyword {word}")
        if word not in self._functions:
            known = ", ".join(sorted(self._functions))
            self._cursor.fail(f"there is no function {word!r}; templates know {known}")
        return Function(word)

    def literal(self, read: Callable[[str], Result], text: str) -> Result:
        """What a literal stands for."""
        try:
            return read(text)
        except TemplateError as error:
            self._cursor.fail(str(error))
