"""Answers that follow schemas: checks, and random answers."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

import numpy as np

from chaski.sample.grammar import GrammarCompiler, GrammarVocabulary
from chaski.sample.lark import Constraint

END = 256
_SPELLING = GrammarVocabulary(
    [*(bytes([value]) for value in range(256)), b"<end>"], [END], [END], lambda text: list(text.encode())
)
_MOST = 400


@cache
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(_SPELLING, END + 1)


def accepts_text(schema: Any, text: str) -> bool:
    """Return whether an answer that follows the schema may be this text."""
    grammar = _compiler().compile(Constraint("format", schema))
    for token in [*text.encode(), END]:
        if not grammar.allowed()[token]:
            return False
        grammar.accept(token)
    return True


def accepts(schema: Any, value: Any) -> bool:
    """Return whether an answer that follows the schema may be this value, written in its order."""
    return accepts_text(schema, json.dumps(value))


def random_answer(schema: Any, random: Random) -> str:
    """Return a random answer that follows the schema, or an empty text if it became too long."""
    grammar, found = _compiler().compile(Constraint("format", schema)), bytearray()
    closers = [*b'"}],', END]
    weights = np.ones(END + 1)
    weights[closers] = 8
    weights[list(b" \n")] = 0.2
    weights[0xC2:0xF5] = 0.02
    for length in range(_MOST):
        choices = np.flatnonzero(grammar.allowed())
        assert choices.size, f"nothing may follow {found!r}"
        weights[closers] = 8 if length < _MOST // 2 else 400
        token = int(random.choices(choices.tolist(), weights[choices].tolist())[0])
        if token == END:
            return found.decode()
        found.append(token)
        grammar.accept(token)
    return ""
