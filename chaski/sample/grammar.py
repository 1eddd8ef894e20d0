"""Answers that follow a grammar: which tokens may come next, from `llguidance`.

A grammar is compiled once for a vocabulary and kept; each answer has its own copy. It only rules tokens
out, so an answer that would have followed it anyway is the same with and without it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.errors import OptionError
from chaski.exits import uncut
from chaski.sample.lark import AnswerPrefix, Constraint, not_compiled, written

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammar", "GrammarCompiler", "GrammarVocabulary", "checked_grammar"]

_NUM_KEPT = 32
# The limit of a grammar's branching within one token: arithmetic in GBNF needs more than the library's 50,000
# for a vocabulary of 128k tokens. A grammar that needs more takes a twentieth of a second, and is an error.
_MAX_ITEMS = 150_000
# A small model would write blanks forever.
_BLANKS: Mapping[str, Any] = {"whitespace_pattern": r"\n? {0,20}"}
# Older versions of the library, as inside of llama.cpp, repeat the pattern, and read separators as they are.
_FIXED_BLANKS: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class GrammarVocabulary(Struct, frozen=True):
    """A vocabulary as bytes.

    tokens       the bytes that each token adds to a text; control tokens as they are spelled
    control_ids  tokens that no text is made of
    end_ids      those that end an answer
    encode       the tokens of a text in the middle of an answer
    """

    tokens: Sequence[bytes]
    control_ids: Sequence[int]
    end_ids: Sequence[int]
    encode: Callable[[str], list[int]]


class Grammar:
    """The state of one answer."""

    def __init__(self, matcher: LLMatcher, kind: str) -> None:
        self._matcher = matcher
        self._kind = kind

    @uncut
    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return for each token whether it may come next (tokens,).

        Raises OptionError where the grammar has become too much work to follow.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            why = self._matcher.get_error().partition("\n")[0]
            why = "no token of the model continues it" if why.startswith("NoExtension") else why
            raise OptionError(f"option {self._kind} cannot be followed any further: {why:.200}")
        return np.unpackbits(bits, bitorder="little").view(np.bool_)

    @uncut
    def accept(self, token_id: int) -> None:
        """Continue after a token."""
        self._matcher.consume_token(token_id)


class GrammarCompiler:
    """Compiles grammars for one vocabulary of `size` tokens, and keeps the last ones.

    Safe to use from several threads.
    """

    def __init__(self, spelling: GrammarVocabulary, size: int) -> None:
        self._spelling = spelling
        self._size = size
        self._kept: OrderedDict[tuple[str, str, AnswerPrefix | None], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @uncut
    def compile(self, constraint: Constraint, lead: AnswerPrefix | None = None) -> Grammar:
        """The grammar of an answer, with the texts that may precede it.

        Raises OptionError with the place of the error if it cannot be compiled.
        """
        key = (constraint.kind, constraint.text, lead)
        with self._lock:
            matcher = self._kept.pop(key, None) or self._compiled(constraint, lead)
            self._kept[key] = matcher
            if len(self._kept) > _NUM_KEPT:
                self._kept.popitem(last=False)
            return Grammar(matcher.deep_copy(), constraint.kind)

    def _compiled(self, constraint: Constraint, lead: AnswerPrefix | None) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        grammars = json.dumps({"grammars": written(constraint, lead, self._controls, _BLANKS)})
        limits = LLParserLimits(step_max_items=_MAX_ITEMS)
        matcher = LLMatcher(self._tokenizer, grammars, log_level=0, limits=limits)
        if matcher.is_error():
            raise not_compiled(constraint, matcher.get_error(), _problem)
        return matcher

    @cached_property
    def _controls(self) -> Mapping[str, int]:
        """Control tokens by their spelling."""
        tokens = self._spelling.tokens
        return {
            tokens[token_id].decode(errors="replace"): token_id for token_id in self._spelling.control_ids
        }

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        missing = [b""] * (self._size - len(self._spelling.tokens))
        adapter = _Adapter(self._spelling, [*self._spelling.tokens, *missing])
        end_ids = sorted(self._spelling.end_ids)
        return LLTokenizer(TokenizerWrapper(adapter), n_vocab=self._size, eos_token=end_ids)


def _problem(grammar: str) -> str:
    """Why a grammar in Lark is refused, or an empty text."""
    from llguidance import LLMatcher

    return str(LLMatcher.validate_grammar(json.dumps({"grammars": [{"lark_grammar": grammar}]})))


class _Adapter:
    """The vocabulary under the names that `llguidance` reads."""

    def __init__(self, spelling: GrammarVocabulary, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.special_token_ids = list(spelling.control_ids)
        self.eos_token_id = min(spelling.end_ids)
        self.bos_token_id = None
        self._encode = spelling.encode

    def __call__(self, text: str | bytes) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        ids = self._encode(data.decode("utf-8", "replace"))
        # A normalizer changes texts, but tokens that are forced must spell exactly the forced bytes.
        return ids if b"".join(self.tokens[i] for i in ids) == data else self._longest(data)

    def _longest(self, data: bytes) -> list[int]:
        """Cut bytes into the longest tokens, from left to right."""
        ids: list[int] = []
        begin = 0
        while begin < len(data):
            ends = range(min(len(data), begin + self._longest_token), begin, -1)
            found = next((end for end in ends if data[begin:end] in self._ids), None)
            if found is None:
                return ids
            ids.append(self._ids[data[begin:found]])
            begin = found
        return ids

    @cached_property
    def _ids(self) -> Mapping[bytes, int]:
        controls = frozenset(self.special_token_ids)
        return {token: i for i, token in enumerate(self.tokens) if token and i not in controls}

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._ids), default=0)


@uncut
def checked_grammar(constraint: Constraint, lead: AnswerPrefix | None, controls: Mapping[str, int]) -> str:
    """The grammar of an answer in Lark, for an engine that compiles it itself. See `written`.

    Raises OptionError with the place of the error if it cannot be compiled.
    """
    from llguidance import LLMatcher

    grammars = written(constraint, lead, controls, _FIXED_BLANKS)
    if len(grammars) > 1:
        raise OptionError(
            f"the engine llama.cpp cannot begin option {constraint.kind} behind the model's thinking: ask "
            "without thinking (think: false), or for a format"
        )
    problem = LLMatcher.validate_grammar(json.dumps({"grammars": grammars}))
    if problem:
        raise not_compiled(constraint, problem, _problem)
    return "%llguidance {}\n" + str(grammars[0]["lark_grammar"])
