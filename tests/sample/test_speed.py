"""Sampling must stay a small part of a token's time. The limits are three times the budget of a free core."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from chaski.sample import Sampler, SamplingOptions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "milliseconds"),
    [
        ({"temperature": 0}, 0.1),
        ({}, 0.3),
        ({"repeat_penalty": 1.1}, 0.3),
        ({"top_k": 0}, 1.5),
        ({"top_k": 0, "top_p": 1.0}, 1.5),
    ],
)
def test_a_token_of_a_vocabulary_of_128k(options: dict[str, Any], milliseconds: float) -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal(128_256) * 2.5).astype(np.float32)
    sampler = Sampler(SamplingOptions(seed=1, **options))
    sampler.begin(range(64))
    times = []
    for _ in range(200):
        start = perf_counter()
        sampler.accept(sampler.sample(logits).token_id)
        times.append(perf_counter() - start)
    assert median(times) < 3 * milliseconds / 1000
