"""Answers of chaski compared with those of llama.cpp, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["largest_difference"]


def largest_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the largest difference of the scores of llama.cpp's ten likeliest tokens.

    The arguments are `logprobs` of answers; the tokens must be the same, as far as llama.cpp reports them.
    """
    differences = [0.0]
    for own, other in zip(ours, theirs, strict=False):
        assert own.token_id == other.token_id
        found = {top.token_id: top.logprob for top in own.top_logprobs or ()}
        differences += [abs(found[top.token_id] - top.logprob) for top in (other.top_logprobs or ())[:10]]
    return max(differences)
