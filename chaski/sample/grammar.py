"""Answers that follow a JSON schema: which tokens may come next, from `llguidance`.

A grammar is compiled once for a vocabulary and kept; each answer has a copy of its own. It only rules tokens
out, so an answer that would have followed it anyway is the same with and without it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from chaski.errors import OptionError
from chaski.sample.schema import closed

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Format", "Grammar", "GrammarCompiler", "Spelling", "checked_schema"]

Format = Literal["json"] | Mapping[str, Any]
"""`json` for any JSON object, or a JSON schema."""

_NUM_KEPT = 32
_MAX_SCHEMA = 1 << 18
"""Characters of a schema at most. Compiling the worst ones of that length takes a second or two."""
_REFUSED = "option format holds a schema that cannot be used"
# A small model would write blanks for ever.
_BLANKS = r"\n? {0,20}"


@dataclass(frozen=True, slots=True)
class Spelling:
    """A vocabulary as bytes.

    tokens       what each token adds to a text; control tokens as they are spelled
    control_ids  tokens that no text is made of
    end_ids      those that end an answer
    encode       the tokens of a text
    """

    tokens: Sequence[bytes]
    control_ids: Sequence[int]
    end_ids: Sequence[int]
    encode: Callable[[str], list[int]]


class Grammar:
    """The state of one answer. Until the text `after` is complete everything is allowed."""

    def __init__(self, matcher: LLMatcher, spelling: Spelling, after: str) -> None:
        self._matcher = matcher
        self._spelling = spelling
        self._after = after.encode()
        self._before = b""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """For each token whether it may come next (tokens,); None is all of them."""
        if self._after:
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little").view(np.bool_)

    def accept(self, token_id: int) -> None:
        """Go on behind a token."""
        if not self._after:
            self._matcher.consume_token(token_id)
            return
        self._before = (self._before + self._spelling.tokens[token_id])[-len(self._after) - 256 :]
        if self._after in self._before:
            self._after = b""


class GrammarCompiler:
    """Compiles grammars for one vocabulary of `size` tokens, and keeps the last ones.

    Safe to use from several threads.
    """

    def __init__(self, spelling: Spelling, size: int) -> None:
        self._spelling = spelling
        self._size = size
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, format: Format, after: str = "") -> Grammar:
        """The grammar of a format, switched on behind the text `after` (the end of thinking, say).

        Raises OptionError for a schema that cannot be compiled; it says where.
        """
        text = _text_of(_schema(format))
        with self._lock:
            matcher = self._kept.pop(text, None) or self._compiled(_closed_text(_schema(format)))
            self._kept[text] = matcher
            if len(self._kept) > _NUM_KEPT:
                self._kept.popitem(last=False)
            return Grammar(matcher.deep_copy(), self._spelling, after)

    def _compiled(self, schema: str) -> LLMatcher:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, _grammar_of(schema), log_level=0)
        if matcher.is_error():
            raise OptionError(f"{_REFUSED}: {matcher.get_error()}")
        return matcher

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        missing = [b""] * (self._size - len(self._spelling.tokens))
        adapter = _Adapter(self._spelling, [*self._spelling.tokens, *missing])
        end_ids = sorted(self._spelling.end_ids)
        return LLTokenizer(TokenizerWrapper(adapter), n_vocab=self._size, eos_token=end_ids)


def _text_of(schema: Mapping[str, Any]) -> str:
    """A schema as JSON. Raises OptionError for one that is too deep or too long."""
    try:
        text = json.dumps(schema)
    except RecursionError:
        raise OptionError(f"{_REFUSED}: it is too deep") from None
    except (TypeError, ValueError) as error:
        raise OptionError(f"{_REFUSED}: {error}") from None
    if len(text) > _MAX_SCHEMA:
        raise OptionError(f"{_REFUSED}: it has {len(text)} characters; at most {_MAX_SCHEMA} are taken")
    return text


def _closed_text(schema: Mapping[str, Any]) -> str:
    """A schema that is not too long as JSON, with its objects closed. Raises OptionError."""
    try:
        return json.dumps(closed(schema))
    except RecursionError:
        raise OptionError(f"{_REFUSED}: it is too deep") from None
    except OptionError as error:
        raise OptionError(f"{_REFUSED}: {error}") from None


class _Adapter:
    """The vocabulary under the names that `llguidance` reads."""

    def __init__(self, spelling: Spelling, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.special_token_ids = list(spelling.control_ids)
        self.eos_token_id = min(spelling.end_ids)
        self.bos_token_id = None
        self._encode = spelling.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def checked_schema(format: Format) -> dict[str, Any]:
    """The JSON schema of a format, for an engine that compiles it itself; blanks are bounded in it.

    Raises OptionError for one that cannot be compiled; it says where.
    """
    from llguidance import LLMatcher

    _text_of(_schema(format))
    text = _closed_text({**_schema(format), "x-guidance": {"whitespace_pattern": _BLANKS}})
    problem = LLMatcher.validate_grammar(_grammar_of(text))
    if problem:
        raise OptionError(f"{_REFUSED}: {problem}")
    found: dict[str, Any] = json.loads(text)
    return found


def _grammar_of(schema: str) -> str:
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": _BLANKS})
    except ValueError as error:
        raise OptionError(f"{_REFUSED}: {error}") from None


def _schema(format: Format) -> Mapping[str, Any]:
    return {"type": "object"} if format == "json" else format
