"""A vocabulary of letters, and samplers over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaski.sample import Sampler, SamplingOptions
from chaski.sample import transforms as t
from chaski.sample.rules import TokenRules

LETTERS = "abcdefghijklmnopqrstuvwxyz\n"


def spell(token_id: int) -> bytes:
    return LETTERS[token_id % len(LETTERS)].encode()


def logits_of(seed: int, size: int = len(LETTERS)) -> t.Logits:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def greedy(rules: TokenRules | None = None, **options: Any) -> Sampler:
    return Sampler(SamplingOptions(temperature=0, **options), rules)
