"""Builds the syntax tree of a Go template from its tokens, by recursive descent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NoReturn, TypeVar

from chaski.errors import TemplateError
from chaski.text.template.go import literals
from chaski.text.template.go.lexer import Kind, Token, tokens
from chaski.text.template.go.nodes import (
    Action,
    Break,
    Call,
    Chain,
    Command,
    Constant,
    Continue,
    Dot,
    Field,
    Function,
    If,
    Nil,
    Node,
    Nodes,
    Operand,
    Pipe,
    Range,
    Text,
    Variable,
    With,
)

MAIN = ""
"""The name of the template that the source itself is; the others have the names of their definitions."""

Result = TypeVar("Result")

_DEEPEST = 100  # parentheses and blocks inside each other
_KEYWORDS = {"block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"}
_BRANCHES: dict[str, type[If] | type[Range] | type[With]] = {"if": If, "range": Range, "with": With}
_JUMPS: dict[str, Break | Continue] = {"break": Break(), "continue": Continue()}
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


def parse(source: str, functions: Collection[str]) -> Mapping[str, Nodes]:
    """The template itself under `MAIN`, and all that it defines. Mistakes are a `TemplateError`."""
    return _Parser(source, functions).parse()


class _Parser:
    def __init__(self, source: str, functions: Collection[str]) -> None:
        self._tokens = list(tokens(source))
        self._position = 0
        self._functions = functions
        self._templates: dict[str, Nodes] = {}
        self._variables = ["$"]
        self._depth = 0
        self._range_depth = 0

    def parse(self) -> Mapping[str, Nodes]:
        main: list[Node] = []
        while self._peek().kind is not Kind.END:
            if self._keyword() == "define":
                self._definition()
            else:
                main.append(self._node())
        self._add(MAIN, tuple(main))
        return self._templates

    def _add(self, name: str, nodes: Nodes) -> None:
        """An empty definition gives way to a full one; two full ones are a mistake."""
        if name not in self._templates or _is_empty(self._templates[name]):
            self._templates[name] = nodes
        elif not _is_empty(nodes):
            self._fail(f"template {name!r} is defined twice")

    def _definition(self) -> None:
        self._skip("define")
        name = self._name()
        self._expect(Kind.CLOSE, "behind the name of a template")
        self._add(name, self._own_body())

    def _own_body(self) -> Nodes:
        """The body of a definition: it sees no variables from outside and is in no loop."""
        kept, self._variables = self._variables, ["$"]
        kept_depth, self._range_depth = self._range_depth, 0
        body = self._body()
        self._end()
        self._variables, self._range_depth = kept, kept_depth
        return body

    def _body(self) -> Nodes:
        """Nodes up to `else` or `end`, which are left for whoever asked."""
        self._enter()
        nodes: list[Node] = []
        while self._keyword() not in ("else", "end"):
            nodes.append(self._node())
        self._depth -= 1
        return tuple(nodes)

    def _node(self) -> Node:
        token = self._next()
        if token.kind is Kind.TEXT:
            return Text(token.text)
        if token.kind is not Kind.OPEN:
            self._fail("the template ends inside of if, range, with, define or block; add {{ end }}")
        self._space()
        word = self._peek().text if self._peek().kind is Kind.WORD else ""
        if word not in _KEYWORDS:
            return Action(self._pipe(Kind.CLOSE))
        self._next()
        return self._control(word)

    def _control(self, word: str) -> Node:
        if word == "block":
            return self._block()
        if word == "template":
            return self._call()
        if word in _JUMPS:
            return self._jump(word)
        if word not in _BRANCHES:
            self._fail(f"unexpected {{{{ {word} }}}}")
        return self._branch(word)

    def _branch(self, word: str) -> If | Range | With:
        """`if`, `range` or `with`, its keyword read; up to and with its `end`."""
        marked = len(self._variables)
        pipe = self._pipe(Kind.CLOSE, most_variables=2 if word == "range" else 1)
        self._range_depth += word == "range"
        body = self._body()
        self._range_depth -= word == "range"
        otherwise: Nodes = ()
        if self._keyword() == "else":
            otherwise = self._otherwise(word)
        else:
            self._end()
        del self._variables[marked:]
        return _BRANCHES[word](pipe, body, otherwise)

    def _otherwise(self, word: str) -> Nodes:
        """What `else` begins. `else if` and `else with` are a branch inside, sharing its `end`."""
        self._skip("else")
        self._space()
        following = self._peek()
        if following.kind is Kind.WORD and following.text == word and word != "range":
            self._next()
            self._enter()
            nested = self._branch(word)
            self._depth -= 1
            return (nested,)
        self._expect(Kind.CLOSE, "behind else")
        body = self._body()
        self._end()
        return body

    def _end(self) -> None:
        if self._keyword() != "end":
            self._fail("expected {{ end }}, found another {{ else }}")
        self._skip("end")
        self._expect(Kind.CLOSE, "behind end")

    def _jump(self, word: str) -> Node:
        self._expect(Kind.CLOSE, f"behind {word}")
        if not self._range_depth:
            self._fail(f"{{{{ {word} }}}} stands outside of {{{{ range }}}}")
        return _JUMPS[word]

    def _call(self) -> Call:
        line = self._peek().line
        name = self._name()
        self._space()
        if self._peek().kind is Kind.CLOSE:
            self._next()
            return Call(name, None, line)
        return Call(name, self._pipe(Kind.CLOSE), line)

    def _block(self) -> Call:
        """A definition and its use in one."""
        line = self._peek().line
        name = self._name()
        pipe = self._pipe(Kind.CLOSE)
        self._add(name, self._own_body())
        return Call(name, pipe, line)

    def _name(self) -> str:
        self._space()
        token = self._next()
        if token.kind is not Kind.STRING:
            self._fail(f"the name of a template must be a string, not {token.text!r}")
        return self._literal(literals.unquote, token.text)

    def _pipe(self, end: Kind, most_variables: int = 1) -> Pipe:
        """A pipeline with its end, `}}` or `)`."""
        self._space()
        line = self._peek().line
        variables, assigns = self._declared(most_variables)
        commands: list[Command] = []
        while True:
            self._space()
            token = self._peek()
            if token.kind is end:
                break
            if token.kind not in _STARTS_OPERAND:
                self._fail(f"unexpected {token.text!r} in an action")
            commands.append(self._command(first=not commands))
        if not commands:
            self._fail("an action needs a value")
        self._next()
        self._variables += variables
        return Pipe(line, variables, assigns, tuple(commands))

    def _declared(self, most: int) -> tuple[tuple[str, ...], bool]:
        """`$a, $b :=` or `$a =` at the start of a pipeline; nothing read where there is none."""
        start = self._position
        names: list[str] = []
        while self._peek().kind is Kind.VARIABLE:
            names.append(self._next().text)
            self._space()
            token = self._next()
            if token.kind in (Kind.DECLARE, Kind.ASSIGN):
                self._space()
                return tuple(names), token.kind is Kind.ASSIGN
            if token.text != ",":
                break
            if len(names) == most:
                self._fail("too many variables before :=; only range may have two")
            self._space()
        if len(names) > 1 or (names and self._tokens[self._position - 1].text == ","):
            self._fail("expected := behind the variables of range")
        self._position = start
        return (), False

    def _command(self, first: bool) -> Command:
        operands: list[Operand] = []
        while True:
            self._space()
            if self._peek().kind in _STARTS_OPERAND:
                operands.append(self._operand())
            token = self._peek()
            if token.kind is Kind.PIPE:
                self._next()
                break
            if token.kind in (Kind.CLOSE, Kind.RIGHT):
                break
            if token.kind is not Kind.SPACE:
                self._fail(f"unexpected {token.text!r} behind an operand; a blank must separate operands")
        if not first and isinstance(operands[0], Dot | Nil | Constant):
            self._fail("only a function can take the value of the pipeline before it")
        return Command(tuple(operands))

    def _operand(self) -> Operand:
        """A term with the fields that follow it without a blank."""
        operand = self._term()
        fields: list[str] = []
        while self._peek().kind is Kind.FIELD:
            fields.append(self._next().text[1:])
        if not fields:
            return operand
        match operand:
            case Field():
                return Field((*operand.names, *fields))
            case Variable():
                return Variable(operand.name, tuple(fields))
            case Dot() | Nil() | Constant():
                self._fail(f"unexpected .{fields[0]} behind a literal or a dot")
        return Chain(operand, tuple(fields))

    def _term(self) -> Operand:
        token = self._next()
        match token.kind:
            case Kind.DOT:
                return Dot()
            case Kind.FIELD:
                return Field((token.text[1:],))
            case Kind.VARIABLE:
                return self._variable(token.text)
            case Kind.STRING:
                return Constant(self._literal(literals.unquote, token.text))
            case Kind.CHARACTER:
                return Constant(self._literal(literals.character, token.text))
            case Kind.NUMBER:
                return Constant(self._literal(literals.number, token.text))
            case Kind.LEFT:
                return self._parenthesized()
            case _:
                return self._word(token.text)

    def _variable(self, name: str) -> Variable:
        if name not in self._variables:
            self._fail(f"the variable {name} is not defined here; declare it with {name} := …")
        return Variable(name)

    def _parenthesized(self) -> Pipe:
        self._enter()
        pipe = self._pipe(Kind.RIGHT)
        self._depth -= 1
        return pipe

    def _word(self, word: str) -> Operand:
        if word in _WORDS:
            return _WORDS[word]
        if word in _KEYWORDS:
            self._fail(f"unexpected keyword {word}")
        if word not in self._functions:
            known = ", ".join(sorted(self._functions))
            self._fail(f"there is no function {word!r}; templates know {known}")
        return Function(word)

    def _literal(self, read: Callable[[str], Result], text: str) -> Result:
        try:
            return read(text)
        except TemplateError as error:
            self._fail(str(error))

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(f"more than {_DEEPEST} blocks and parentheses stand inside each other")

    def _keyword(self) -> str:
        """The keyword of the action that begins here, or nothing; nothing is read."""
        if self._peek().kind is not Kind.OPEN:
            return ""
        ahead = self._position + 1
        while self._tokens[ahead].kind is Kind.SPACE:
            ahead += 1
        return self._tokens[ahead].text if self._tokens[ahead].kind is Kind.WORD else ""

    def _skip(self, word: str) -> None:
        """Read the opening of an action and its keyword."""
        while self._next().text != word:
            pass

    def _space(self) -> None:
        while self._peek().kind is Kind.SPACE:
            self._position += 1

    def _expect(self, kind: Kind, where: str) -> None:
        self._space()
        if self._next().kind is not kind:
            self._fail(f"unexpected {self._tokens[self._position - 1].text!r} {where}")

    def _peek(self) -> Token:
        return self._tokens[self._position]

    def _next(self) -> Token:
        token = self._tokens[self._position]
        self._position += token.kind is not Kind.END
        return token

    def _fail(self, message: str) -> NoReturn:
        line = self._tokens[max(self._position - 1, 0)].line
        raise TemplateError(f"the chat template, line {line}: {message}")


def _is_empty(nodes: Nodes) -> bool:
    return all(isinstance(node, Text) and not node.text.strip() for node in nodes)
