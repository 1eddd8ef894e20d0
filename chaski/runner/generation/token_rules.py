"""Turns options that speak of texts into tokens of one vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from chaski.chat.options import AnswerOptions
from chaski.sample.rules import TokenRules

if TYPE_CHECKING:
    from chaski.text.tokenizer import Tokenizer

__all__ = ["token_rules"]

_NUM_KEPT = 4096


def token_rules(limits: AnswerOptions, tokenizer: Tokenizer, ends: frozenset[int]) -> TokenRules:
    """Return the rules that the options set for tokens, as ids of one vocabulary.

    ends: tokens that end the answer
    """
    stops = frozenset(limits.stop_token_ids)
    return TokenRules(
        suppressed=tokenizer.suppressed_ids,
        never=ends - stops if limits.ignore_eos else frozenset(),
        end_ids=ends | stops,
        min_tokens=limits.min_tokens,
        bad_words=tuple(dict.fromkeys(_spellings(limits.bad_words, tokenizer))),
        breakers=tuple(text.encode(errors="replace") for text in limits.dry_sequence_breakers),
        spell=lru_cache(_NUM_KEPT)(partial(_spelled, tokenizer)),
    )


def _spelled(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return the bytes of a token; none for tokens that pad the vocabulary."""
    return tokenizer.token_bytes(token_id, special=True) if token_id < tokenizer.size else b""


def _spellings(words: Iterable[str], tokenizer: Tokenizer) -> Iterable[tuple[int, ...]]:
    """Yield the tokens of each word as it stands, and as it stands after a space."""
    for word in words:
        alone, behind = (_encoded(text, tokenizer) for text in (word, " " + word.lstrip()))
        yield alone
        # A separate space token would only rule out one spelling of the same word.
        if behind[-len(alone) :] != alone:
            yield behind


def _encoded(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special=False, parse_special=False, continues=True))
