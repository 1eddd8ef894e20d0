"""Log-probabilities with the texts of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

from chaski.errors import OptionError
from chaski.sample import Sampled
from chaski.server.answering.events import Prompted, Score, TopScore

if TYPE_CHECKING:
    from chaski.text.tokenizer import Tokenizer

__all__ = ["MAX_SCORES", "prompted_of", "require_few_scores", "score_of"]

MAX_SCORES = 1 << 19
"""Largest number of log-probabilities of prompts in an answer."""
_IMPOSSIBLE = -9999.0

Spelling: TypeAlias = Callable[[int], tuple[str, bytes]]
"""Function that returns the text and the bytes of a token."""


def require_few_scores(num_tokens: int, num_top: int) -> None:
    """Raise OptionError if prompts of `num_tokens` tokens have too many log-probabilities."""
    count = num_tokens * (1 + num_top)
    if count > MAX_SCORES:
        raise OptionError(
            f"{num_tokens} prompt tokens with {1 + num_top} log-probabilities each make {count}, but at "
            f"most {MAX_SCORES} are returned; send fewer prompts at once, or ask for fewer log-probabilities"
        )


def score_of(sampled: Sampled, tokenizer: Tokenizer) -> Score:
    """Return the text, bytes and log-probabilities of a sampled token, for the dialects."""
    return _score(sampled, partial(_spelled, tokenizer))


def prompted_of(text: str, first_id: int, scores: Iterable[Sampled], tokenizer: Tokenizer) -> Prompted:
    """Return a prompt with the scores of its tokens, for the dialects. `first_id` is its first token."""
    spelled = cache(partial(_spelled, tokenizer))  # spells each distinct token once
    return Prompted(text, _shown(spelled, first_id, None), [_score(each, spelled) for each in scores])


def _score(sampled: Sampled, spelled: Spelling) -> Score:
    top = sampled.top_logprobs
    shown = None if top is None else [_shown(spelled, *each) for each in top]
    return Score(_shown(spelled, sampled.token_id, sampled.logprob), shown)


def _spelled(tokenizer: Tokenizer, token_id: int) -> tuple[str, bytes]:
    data = tokenizer.token_bytes(token_id, special=True)
    return data.decode(errors="replace"), data


def _shown(spelled: Spelling, token_id: int, logprob: float | None) -> TopScore:
    # JSON has no infinite numbers; an impossible token gets the value that OpenAI returns.
    known = 0.0 if logprob is None else max(logprob, _IMPOSSIBLE)
    return TopScore(*spelled(token_id), known, token_id)
