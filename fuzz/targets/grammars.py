"""Grammars that answers must follow: GBNF and Lark, regular expressions, and JSON schemas."""

from __future__ import annotations

import json
import random
from functools import cache

from chaski.sample.grammar import GrammarCompiler, GrammarVocabulary
from chaski.sample.lark import Constraint
from fuzz.mutations import mutate_json, words
from fuzz.target import Target

__all__ = ["TARGETS"]

_END = 256
_STEPS = 24


@cache
def _compiler() -> GrammarCompiler:
    """Return a compiler for a vocabulary of all bytes, and an end."""
    tokens = [*(bytes([value]) for value in range(256)), b"<end>"]
    return GrammarCompiler(
        GrammarVocabulary(tokens, [_END], [_END], lambda text: list(text.encode())), len(tokens)
    )


def _follow(constraint: Constraint) -> None:
    """Write tokens that the grammar allows. It must allow some, until it allows nothing but the end."""
    rng = random.Random(0)
    grammar = _compiler().compile(constraint)
    for _ in range(_STEPS):
        allowed = grammar.allowed().nonzero()[0].tolist()
        assert allowed, "the grammar allows no token, and no end"
        if allowed == [_END]:
            return
        grammar.accept(rng.choice([token for token in allowed if token != _END]))


def grammar(data: bytes) -> None:
    """A grammar is refused, or allows a next token or the end after each allowed token."""
    _follow(Constraint("grammar", data.decode("utf-8", "replace")))


def regex(data: bytes) -> None:
    """An expression is refused, or allows a next token or the end after each allowed token."""
    _follow(Constraint("regex", data.decode("utf-8", "replace")))


def schema(data: bytes) -> None:
    """A schema is refused, or allows a next token or the end after each allowed token."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        _follow(Constraint("format", value))


_GBNF = words(
    '\nitem ::= "a" | item "b"\n', '\nws ::= [ \\t]*\n', ' ("a" | "b")? ', " [a-z]{1,3} ", " item ws ",
    "root", "::=", ":", "|", "*", "+", "?", "{2}", "{1,}", "{0,3}", "{1000000}", "(", ")", "[", "]", "[^",
    "-", '"',
    "\\x41", "\\u00e9", "\\U0001F600", "\\", ".", "#", "\n", "ws", "item", "start", "%llguidance {}",
    "%json", "%ignore", "%regex", "/a*/", "/[/", "~", "->", "<think>", "<[5]>", "!", "&", "%lark", "@x", "é",
)  # fmt: skip
_REGEX = words(
    "(?:a|b)*", "[a-z]{1,3}", "(x+)?", "\\d+(\\.\\d+)?", "[^\\s]",
    "(", ")", "(?:", "(?=", "(?!", "(?i)", "[", "]", "[^", "^", "$", "*", "+", "?", "{2}", "{1,}", "{0,3}",
    "{1000000}", "|", ".", "\\d", "\\w", "\\b", "\\p{L}", "\\1", "\\u00e9", "\\x41", "\\n", "\\", "-", "é",
    "/",     "&&", "a", "1",
)  # fmt: skip

TARGETS = (
    Target("grammar", grammar, _GBNF),
    Target("regex", regex, _REGEX),
    Target("schema", schema, mutate_json),
)
