"""Log-probabilities with the texts of their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from chaski.sample import Sampled
from chaski.server.service.events import Prompted, Score, TopScore

if TYPE_CHECKING:
    from chaski.text.tokenizer import Tokenizer

__all__ = ["prompted_of", "score_of"]

_IMPOSSIBLE = -9999.0


def score_of(sampled: Sampled, tokenizer: Tokenizer) -> Score:
    """Return the text, bytes and log-probabilities of a sampled token, for the dialects."""
    top = sampled.top_logprobs
    shown = None if top is None else [_shown(tokenizer, *each) for each in top]
    return Score(_shown(tokenizer, sampled.token_id, sampled.logprob), shown)


def prompted_of(text: str, first_id: int, scores: Iterable[Sampled], tokenizer: Tokenizer) -> Prompted:
    """Return the prompt with the scores of its tokens, for the dialects. `first_id` is its first token."""
    return Prompted(text, _shown(tokenizer, first_id, None), [score_of(each, tokenizer) for each in scores])


def _shown(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> TopScore:
    data = tokenizer.token_bytes(token_id, special=True)
    # JSON has no infinite numbers; an impossible token gets the value that OpenAI returns.
    known = 0.0 if logprob is None else max(logprob, _IMPOSSIBLE)
    return TopScore(data.decode(errors="replace"), data, known, token_id)
