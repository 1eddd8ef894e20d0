"""Encoders of IQ1 to IQ3: errors below ggml's, and the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from chaski import _native
from chaski.formats.codebook_encoders import CODEBOOK_ENCODERS
from chaski.formats.dequantize import _codebook, dequantize
from chaski.formats.quant import QuantType as Q
from chaski.formats.quantize import quantize
from tests.formats.test_quantize import IMPORTANCE, WEIGHTS

TYPES = list(CODEBOOK_ENCODERS)
ROWS = 8
# The error that ggml's code reaches with the first rows of these weights and this importance: the root of the
# weighted mean square over the standard deviation (xllamacpp 2026.10).
REFERENCE_ERROR = {
    "normal": {Q.IQ3_S: 0.1544, Q.IQ3_XXS: 0.1958, Q.IQ2_S: 0.2886, Q.IQ2_XS: 0.3332, Q.IQ2_XXS: 0.3764},
    "heavy tails": {Q.IQ3_S: 0.2223, Q.IQ3_XXS: 0.2581, Q.IQ2_S: 0.4311, Q.IQ2_XS: 0.4617, Q.IQ2_XXS: 0.5782},
}
REFERENCE_ERROR["normal"] |= {Q.IQ1_M: 0.5001, Q.IQ1_S: 0.5632}
REFERENCE_ERROR["heavy tails"] |= {Q.IQ1_M: 0.5685, Q.IQ1_S: 0.7055}


def rows(name: str) -> np.ndarray:
    return np.ascontiguousarray(WEIGHTS[name][:ROWS], np.float32)


@pytest.mark.parametrize("name", REFERENCE_ERROR)
@pytest.mark.parametrize("type", TYPES)
def test_errors_are_below_those_of_ggml(type: Q, name: str) -> None:
    x = rows(name)
    difference = dequantize(quantize(x, type, importance=IMPORTANCE), type, x.shape) - x
    found = np.sqrt(np.mean(difference * difference * IMPORTANCE)) / x.std()
    assert found < REFERENCE_ERROR[name][type]


@pytest.mark.parametrize("type", TYPES)
def test_importance_lowers_the_weighted_error(type: Q) -> None:
    x = rows("normal")

    def error(data: np.ndarray) -> float:
        difference = dequantize(data, type, x.shape) - x
        return float(np.mean(difference * difference * IMPORTANCE))

    assert error(quantize(x, type, importance=IMPORTANCE)) < 0.98 * error(quantize(x, type))


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", TYPES)
def test_instruction_sets_agree(type: Q, isa: str) -> None:
    size = 16 if type in (Q.IQ1_M, Q.IQ2_S, Q.IQ2_XS) else 32
    x = np.vstack([rows("heavy tails")[:1].reshape(-1, size), np.zeros((2, size)), np.full((1, size), -0.5)])
    x = x.astype(np.float32)
    weights = np.exp(np.random.default_rng(3).standard_normal(x.shape)).astype(np.float32)
    groups = size // (4 if type in (Q.IQ3_S, Q.IQ3_XXS) else 8)

    def found(isa: str) -> list[bytes]:
        scales = _native.fit_codebook(int(type), x, weights, isa)
        entries, signs = np.empty((len(x), groups), np.uint16), np.empty((len(x), size // 8), np.uint8)
        choices, sums = np.empty(len(x), np.uint8), np.empty((len(x), 2), np.float32)
        tried = np.stack([scales, scales * np.float32(0.9)])
        _native.choose_entries(int(type), x, weights, tried, choices, entries, signs, sums, isa)
        return [each.tobytes() for each in (scales, choices, entries, signs, sums)]

    assert found(isa) == found("portable")


DELTAS = np.array([0.125, -0.125], np.float32)


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("name", ["normal", "heavy tails", "three values"])
@pytest.mark.parametrize("type", TYPES)
def test_entries_are_the_best_of_all(type: Q, name: str, isa: str) -> None:
    """The search compares entries with a common half before its error is added. Here all errors are sums."""
    levels = _codebook(Q.IQ1_S if type is Q.IQ1_M else type)[None]
    size, group = (16 if type in (Q.IQ1_M, Q.IQ2_S, Q.IQ2_XS) else 32), levels.shape[2]
    x = np.rint(rows("normal")) if name == "three values" else rows(name)
    x = np.ascontiguousarray(x[:1].reshape(-1, size), np.float32)
    random = np.random.default_rng(3)
    weights = np.exp(2 * random.standard_normal(x.shape)).astype(np.float32)
    scales = _native.fit_codebook(int(type), x, weights, isa)
    scales *= random.choice(np.array([0, 0.3, 1, 3], np.float32), len(x), p=[0.1, 0.2, 0.5, 0.2])
    entries, signs = np.empty((len(x), size // group), np.uint16), np.empty((len(x), size // 8), np.uint8)
    rest = np.empty(len(x), np.uint8), entries, signs, np.empty((len(x), 2), np.float32)
    _native.choose_entries(int(type), x, weights, scales[None], *rest, isa)
    parts, shares = x.reshape(-1, 1, group), weights.reshape(-1, 1, group)
    if type in (Q.IQ1_S, Q.IQ1_M):
        levels = levels + DELTAS[signs].reshape(-1, 1, 1)
    else:
        negative = np.unpackbits(signs, axis=1, bitorder="little").reshape(parts.shape)
        parts = np.where(negative == 1, -parts, parts)
    difference = parts - np.repeat(scales, size // group).reshape(-1, 1, 1) * levels
    errors = shares * (difference * difference)
    while errors.shape[2] > 1:
        errors = errors[:, :, ::2] + errors[:, :, 1::2]
    np.testing.assert_array_equal(entries.reshape(-1), errors[:, :, 0].argmin(axis=1))


@pytest.mark.parametrize("type", TYPES)
def test_zeros_stay_zero(type: Q) -> None:
    x = np.zeros((2, 256), np.float32)
    np.testing.assert_array_equal(dequantize(quantize(x, type), type, x.shape), x)


@pytest.mark.parametrize("type", TYPES)
def test_values_that_a_type_can_hold_are_found(type: Q) -> None:
    """What a block decodes to is encoded again with nearly no loss."""
    random = np.random.default_rng(7)
    x = dequantize(quantize(random.standard_normal((4, 256)), type), type, (4, 256))
    again = dequantize(quantize(x, type), type, x.shape)
    assert np.abs(again - x).mean() < 0.2 * np.abs(x).mean()


def test_elements_of_one_size_in_iq2_xxs() -> None:
    """Only the lowest level has an entry of it alone. ggml does not try it: its error is 0.3965."""
    x = np.random.default_rng(3).choice((-0.1, 0.1), (64, 2048)).astype(np.float32)
    difference = dequantize(quantize(x, Q.IQ2_XXS, importance=IMPORTANCE), Q.IQ2_XXS, x.shape) - x
    assert np.sqrt(np.mean(difference * difference * IMPORTANCE)) / x.std() < 0.3


def test_sizes_are_checked() -> None:
    x = np.zeros((2, 32), np.float32)
    scales, entries, signs = (
        np.zeros((1, 2), np.float32),
        np.empty((2, 4), np.uint16),
        np.empty((2, 4), np.uint8),
    )
    rest = np.empty(2, np.uint8), entries, signs, np.empty((2, 2), np.float32)
    with pytest.raises(ValueError, match="the results do not fit x"):
        _native.choose_entries(int(Q.IQ3_S), x, x, scales, *rest)
    with pytest.raises(ValueError, match="each sub-block has 1 to 16 scales"):
        _native.choose_entries(int(Q.IQ1_S), x, x, scales[:, :1], *rest)
    with pytest.raises(ValueError, match="16 or 32 elements"):
        _native.fit_codebook(int(Q.IQ1_S), np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32))
    with pytest.raises(ValueError, match="those of IQ3 have 32"):
        _native.fit_codebook(int(Q.IQ3_S), np.zeros((2, 16), np.float32), np.zeros((2, 16), np.float32))
