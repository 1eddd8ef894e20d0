"""Q1_0, Q2_0 and the ternary types: scales near the best ones, and ggml's for weights of three values."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize as quantize_gguf

from chaski.formats.dequantize import dequantize
from chaski.formats.quant import Floats
from chaski.formats.quant import QuantType as Q
from chaski.formats.quantize import quantize
from tests.formats.test_quantize import IMPORTANCE, WEIGHTS
from tests.tiers import long_after

HIGHEST = {Q.Q2_0: 2, Q.TQ1_0: 1, Q.TQ2_0: 1}
ROWS = 8


def rows(name: str) -> Floats:
    return np.ascontiguousarray(WEIGHTS[name][:ROWS], np.float32)


def errors(x: Floats, type: Q, importance: Floats | None = None) -> Floats:
    """Return the weighted sum of squared errors of each block."""
    difference = dequantize(quantize(x, type, importance=importance), type, x.shape) - x
    shares = np.ones(x.shape[1], np.float32) if importance is None else importance
    found: Floats = (difference * difference * shares).reshape(-1, type.block_size).sum(axis=1)
    return found


def least_errors(x: Floats, type: Q, importance: Floats) -> Floats:
    """Return the same with the best of a thousand scales of each sign."""
    parts = x.reshape(-1, type.block_size)
    weights = np.broadcast_to(importance, x.shape).reshape(parts.shape)
    peak = np.abs(parts).max(axis=1, keepdims=True)
    least = np.full(len(parts), np.inf, np.float32)
    for share in np.geomspace(0.05, 1, 1000):
        for d in (share * peak, -share * peak):
            rest = np.clip(np.rint(parts / d), -1, HIGHEST[type]) * d - parts
            least = np.minimum(least, (weights * rest * rest).sum(axis=1))
    return least


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", long_after(1, WEIGHTS))
@pytest.mark.parametrize("type", HIGHEST)
def test_scales_are_nearly_the_best(type: Q, name: str, is_weighted: bool) -> None:
    x = rows(name)
    found = errors(x, type, IMPORTANCE if is_weighted else None)
    least = least_errors(x, type, IMPORTANCE if is_weighted else np.ones_like(IMPORTANCE))
    assert found.sum() < 1.01 * least.sum()


@pytest.mark.parametrize("type", [Q.TQ1_0, Q.TQ2_0])
def test_three_values_have_the_bytes_of_gguf(type: Q) -> None:
    d = np.float32(0.25) * np.arange(1, 17, dtype=np.float32)[:, None]
    x = np.random.default_rng(3).integers(-1, 2, (16, 512)).astype(np.float32) * d
    wanted = quantize_gguf(x, GGMLQuantizationType(int(type)))
    np.testing.assert_array_equal(quantize(x, type), wanted.view(np.uint8).reshape(-1))


def test_three_and_four_values_stay_in_q2_0() -> None:
    """Scales are positive, as ggml's, unless the fourth value is needed."""
    random = np.random.default_rng(3)
    for high, d in ((1, 0.25), (2, 0.25), (2, -3.0)):
        x = (random.integers(-1, high + 1, (16, 512)) * d).astype(np.float32)
        data = quantize(x, Q.Q2_0)
        np.testing.assert_array_equal(dequantize(data, Q.Q2_0, x.shape), x)
        assert np.all(data.view(Q.Q2_0.layout)["d"] == d)


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_scale_of_q1_0_is_the_best_for_signs(name: str) -> None:
    x = rows(name)
    found = errors(x, Q.Q1_0, IMPORTANCE)
    parts, weights = x.reshape(-1, 128), np.broadcast_to(IMPORTANCE, x.shape).reshape(-1, 128)
    size = np.abs(parts)
    best = (weights * size).sum(axis=1) ** 2 / weights.sum(axis=1)
    np.testing.assert_allclose(found, (weights * size * size).sum(axis=1) - best, rtol=1e-3)
    assert found.sum() < errors_without_importance(x)


def errors_without_importance(x: Floats) -> float:
    difference = dequantize(quantize(x, Q.Q1_0), Q.Q1_0, x.shape) - x
    return float((difference * difference * IMPORTANCE).sum())


@pytest.mark.parametrize("type", [Q.Q1_0, *HIGHEST])
def test_zeros_stay_zero(type: Q) -> None:
    x = np.zeros((2, 256), np.float32)
    np.testing.assert_array_equal(dequantize(quantize(x, type), type, x.shape), x)
