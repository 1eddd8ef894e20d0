"""Log-probabilities with the texts of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaski.sample import Sampled
from chaski.server.events import Score, TopScore

if TYPE_CHECKING:
    from chaski.text.tokenizer import Tokenizer

__all__ = ["score_of"]


def score_of(sampled: Sampled, tokenizer: Tokenizer) -> Score:
    """What dialects show of a sampled token."""

    def shown(token_id: int, logprob: float | None) -> TopScore:
        data = tokenizer.token_bytes(token_id, special=True)
        return TopScore(data.decode(errors="replace"), data, 0.0 if logprob is None else logprob)

    top = None if sampled.top_logprobs is None else [shown(*each) for each in sampled.top_logprobs]
    return Score(shown(sampled.token_id, sampled.logprob), top)
