"""Recursive-descent parsing of a Go template's tokens into its syntax tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chaski.text.template.go import literals, syntax
from chaski.text.template.go.cursor import TokenCursor
from chaski.text.template.go.expressions import KEYWORDS, Expressions
from chaski.text.template.go.lexer import TokenKind

MAIN = ""
"""The name of the top-level template; other templates have the names of their definitions."""

_BRANCHES: dict[str, type[syntax.If] | type[syntax.Range] | type[syntax.With]] = {
    "if": syntax.If,
    "range": syntax.Range,
    "with": syntax.With,
}
_JUMPS: dict[str, syntax.Break | syntax.Continue] = {"break": syntax.Break(), "continue": syntax.Continue()}


def parse(source: str, functions: Collection[str]) -> Mapping[str, syntax.Nodes]:
    """The template itself under `MAIN`, and all that it defines. Mistakes are a `TemplateError`."""
    return _Parser(source, functions).parse()


class _Parser:
    def __init__(self, source: str, functions: Collection[str]) -> None:
        self._cursor = TokenCursor(source)
        self._expressions = Expressions(self._cursor, functions)
        self._templates: dict[str, syntax.Nodes] = {}
        self._range_depth = 0

    def parse(self) -> Mapping[str, syntax.Nodes]:
        main: list[syntax.Node] = []
        while self._cursor.peek().kind is not TokenKind.END:
            if self._cursor.keyword() == "define":
                self._definition()
            else:
                main.append(self._node())
        self._add(MAIN, tuple(main))
        return self._templates

    def _add(self, name: str, nodes: syntax.Nodes) -> None:
        """An empty definition gives way to a full one; two full ones are a mistake."""
        if name not in self._templates or _is_empty(self._templates[name]):
            self._templates[name] = nodes
        elif not _is_empty(nodes):
            self._cursor.fail(f"template {name!r} is defined twice")

    def _definition(self) -> None:
        self._cursor.skip_keyword()
        name = self._name()
        self._cursor.expect(TokenKind.CLOSE, "after the name of a template")
        self._add(name, self._own_body())

    def _own_body(self) -> syntax.Nodes:
        """The body of a definition: it sees no variables from outside and is in no loop."""
        kept, self._expressions.variables = self._expressions.variables, ["$"]
        kept_depth, self._range_depth = self._range_depth, 0
        body = self._body()
        self._end()
        self._expressions.variables, self._range_depth = kept, kept_depth
        return body

    def _body(self) -> syntax.Nodes:
        """Nodes up to `else` or `end`, which are left for the caller."""
        self._cursor.enter()
        nodes: list[syntax.Node] = []
        while self._cursor.keyword() not in ("else", "end"):
            nodes.append(self._node())
        self._cursor.leave()
        return tuple(nodes)

    def _node(self) -> syntax.Node:
        token = self._cursor.next()
        if token.kind is TokenKind.TEXT:
            return syntax.Text(token.text)
        if token.kind is not TokenKind.OPEN:
            self._cursor.fail("the template ends inside if, range, with, define or block; add {{ end }}")
        self._cursor.skip_space()
        word = self._cursor.peek().text if self._cursor.peek().kind is TokenKind.WORD else ""
        if word not in KEYWORDS:
            return syntax.Action(self._expressions.pipe(TokenKind.CLOSE))
        self._cursor.next()
        return self._control(word)

    def _control(self, word: str) -> syntax.Node:
        if word == "block":
            return self._block()
        if word == "template":
            return self._call()
        if word in _JUMPS:
            return self._jump(word)
        if word not in _BRANCHES:
            self._cursor.fail(f"unexpected {{{{ {word} }}}}")
        return self._branch(word)

    def _branch(self, word: str) -> syntax.If | syntax.Range | syntax.With:
        """`if`, `range` or `with`, its keyword read; up to and with its `end`."""
        marked = len(self._expressions.variables)
        pipe = self._expressions.pipe(TokenKind.CLOSE, most_variables=2 if word == "range" else 1)
        self._range_depth += word == "range"
        body = self._body()
        self._range_depth -= word == "range"
        otherwise: syntax.Nodes = ()
        if self._cursor.keyword() == "else":
            otherwise = self._otherwise(word)
        else:
            self._end()
        del self._expressions.variables[marked:]
        return _BRANCHES[word](pipe, body, otherwise)

    def _otherwise(self, word: str) -> syntax.Nodes:
        """Parse the branch of an `else`. `else if` and `else with` nest, and share its `end`."""
        self._cursor.skip_keyword()
        self._cursor.skip_space()
        following = self._cursor.peek()
        if following.kind is TokenKind.WORD and following.text == word and word != "range":
            self._cursor.next()
            self._cursor.enter()
            nested = self._branch(word)
            self._cursor.leave()
            return (nested,)
        self._cursor.expect(TokenKind.CLOSE, "behind else")
        body = self._body()
        self._end()
        return body

    def _end(self) -> None:
        if self._cursor.keyword() != "end":
            self._cursor.fail("expected {{ end }}, found another {{ else }}")
        self._cursor.skip_keyword()
        self._cursor.expect(TokenKind.CLOSE, "behind end")

    def _jump(self, word: str) -> syntax.Node:
        self._cursor.expect(TokenKind.CLOSE, f"behind {word}")
        if not self._range_depth:
            self._cursor.fail(f"{{{{ {word} }}}} must be inside {{{{ range }}}}")
        return _JUMPS[word]

    def _call(self) -> syntax.Template:
        line = self._cursor.peek().line
        name = self._name()
        self._cursor.skip_space()
        if self._cursor.peek().kind is TokenKind.CLOSE:
            self._cursor.next()
            return syntax.Template(name, None, line)
        return syntax.Template(name, self._expressions.pipe(TokenKind.CLOSE), line)

    def _block(self) -> syntax.Template:
        """A definition and its use in one."""
        line = self._cursor.peek().line
        name = self._name()
        pipe = self._expressions.pipe(TokenKind.CLOSE)
        self._add(name, self._own_body())
        return syntax.Template(name, pipe, line)

    def _name(self) -> str:
        self._cursor.skip_space()
        token = self._cursor.next()
        if token.kind is not TokenKind.STRING:
            self._cursor.fail(f"the name of a template must be a string, not {token.text!r}")
        return self._expressions.literal(literals.unquote, token.text)


def _is_empty(nodes: syntax.Nodes) -> bool:
    return all(isinstance(node, syntax.Text) and not node.text.strip() for node in nodes)
