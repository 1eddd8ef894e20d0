"""Quantization: the simple types equal the gguf package, the K-quants come close to the weights."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize as quantize_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chaski import _native
from chaski.errors import FormatError, UnsupportedError
from chaski.formats import quantize as quantize_module
from chaski.formats.dequantize import IQ4_VALUES, dequantize, unpack, unpack_scales_6bit
from chaski.formats.packing import pack
from chaski.formats.quant import QuantType, as_float32
from chaski.formats.quantize import quantize
from chaski.formats.scale_search import element_weights, intervals, places, scale_places
from tests.formats import encode_rule, fit_rule, lines_rule

SIMPLE = [
    QuantType.F32,
    QuantType.F16,
    QuantType.BF16,
    QuantType.Q8_0,
    QuantType.Q4_0,
    QuantType.Q4_1,
    QuantType.Q5_0,
    QuantType.Q5_1,
]
COARSE = [QuantType.Q1_0, QuantType.NVFP4]
FEW_LEVELS = [QuantType.Q2_0, QuantType.TQ1_0, QuantType.TQ2_0]
K_QUANTS = [QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K]
FEW_BITS = [QuantType.Q2_K, QuantType.Q3_K, QuantType.IQ4_NL, QuantType.IQ4_XS]
SEARCHED = [*K_QUANTS, *FEW_BITS]

RNG = np.random.default_rng(5)
SHAPE = (64, 2048)
WEIGHTS = {
    "normal": RNG.standard_normal(SHAPE),
    "laplace": RNG.laplace(size=SHAPE),
    "heavy tails": RNG.standard_t(3, size=SHAPE),
    "shifted": RNG.standard_normal(SHAPE) + 2,
    "small": RNG.standard_normal(SHAPE) * 0.02,
}
Q = QuantType
# Root mean square error over the standard deviation that ggml's own code reaches with these weights
# (xllamacpp 2026.10; test_quantize_oracle.py compares them live).
REFERENCE_ERROR = {
    "normal": {Q.Q4_K: 0.07091, Q.Q5_K: 0.03599, Q.Q6_K: 0.01769},
    "laplace": {Q.Q4_K: 0.08435, Q.Q5_K: 0.04267, Q.Q6_K: 0.02159},
    "heavy tails": {Q.Q4_K: 0.09197, Q.Q5_K: 0.04667, Q.Q6_K: 0.02533},
    "shifted": {Q.Q4_K: 0.07408, Q.Q5_K: 0.03701, Q.Q6_K: 0.03051},
    "small": {Q.Q4_K: 0.07134, Q.Q5_K: 0.03608, Q.Q6_K: 0.01774},
}
FEW_BITS_ERROR = {
    "normal": {Q.Q2_K: 0.2954, Q.Q3_K: 0.15008, Q.IQ4_NL: 0.07582, Q.IQ4_XS: 0.07641},
    "laplace": {Q.Q2_K: 0.34436, Q.Q3_K: 0.17543, Q.IQ4_NL: 0.08772, Q.IQ4_XS: 0.0884},
    "heavy tails": {Q.Q2_K: 0.34866, Q.Q3_K: 0.18975, Q.IQ4_NL: 0.10085, Q.IQ4_XS: 0.10191},
    "shifted": {Q.Q2_K: 0.32295, Q.Q3_K: 0.25583, Q.IQ4_NL: 0.14451, Q.IQ4_XS: 0.14573},
    "small": {Q.Q2_K: 0.29601, Q.Q3_K: 0.15114, Q.IQ4_NL: 0.07613, Q.IQ4_XS: 0.0767},
}
# The same with the squares weighted by IMPORTANCE, which both sides know.
IMPORTANCE = np.exp(np.random.default_rng(8).standard_normal(SHAPE[1])).astype(np.float32)
WEIGHTED_ERROR = {
    "normal": {Q.Q2_K: 0.3021, Q.Q3_K: 0.17002, Q.Q4_K: 0.08201, Q.Q5_K: 0.04177, Q.Q6_K: 0.0205},
    "heavy tails": {Q.Q2_K: 0.35132, Q.Q3_K: 0.22297, Q.Q4_K: 0.10784, Q.Q5_K: 0.05576, Q.Q6_K: 0.03063},
}
WEIGHTED_ERROR["normal"] |= {Q.IQ4_NL: 0.08956, Q.IQ4_XS: 0.09053, Q.Q4_0: 0.09856, Q.Q5_1: 0.03915}
WEIGHTED_ERROR["heavy tails"] |= {Q.IQ4_NL: 0.1199, Q.IQ4_XS: 0.12201, Q.Q4_1: 0.10484, Q.Q5_0: 0.07882}


def error(x: np.ndarray, type: QuantType) -> float:
    restored = dequantize(quantize(x, type), type, x.shape)
    return float(np.sqrt(np.mean((restored - x) ** 2)) / x.std())


def rounded_error(x: np.ndarray, type: QuantType) -> float:
    """Return the error of rounding to a grid between the extremes of each sub-block, without a search."""
    size, top = (16, 63) if type is QuantType.Q6_K else (32, {QuantType.Q4_K: 15, QuantType.Q5_K: 31}[type])
    parts = x.reshape(-1, size)
    low = (
        -np.abs(parts).max(1, keepdims=True)
        if type is QuantType.Q6_K
        else np.minimum(parts.min(1, keepdims=True), 0)
    )
    high = -low if type is QuantType.Q6_K else np.maximum(parts.max(1, keepdims=True), 0)
    step = (high - low) / top
    restored = np.rint((parts - low) / step) * step + low
    return float(np.sqrt(np.mean((restored - parts) ** 2)) / x.std())


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("type", SIMPLE)
def test_equals_gguf(type: QuantType, name: str) -> None:
    x = WEIGHTS[name].astype(np.float32)
    wanted = quantize_gguf(x, GGMLQuantizationType(int(type)))
    np.testing.assert_array_equal(quantize(x, type), wanted.view(np.uint8).reshape(-1))


@pytest.mark.parametrize("type", [QuantType.Q8_0, QuantType.Q4_0])
def test_ties_equal_gguf(type: QuantType) -> None:
    """Whole and half multiples of the scale with both signs: rounding of ties is part of the rule."""
    x = (np.arange(-254, 258, dtype=np.float32) / 2).reshape(16, 32)
    x[:, 0] = 127
    wanted = quantize_gguf(x, GGMLQuantizationType(int(type)))
    np.testing.assert_array_equal(quantize(x, type), wanted.reshape(-1))


@pytest.mark.parametrize("value", [0.1, 7.3, 200.0, 340.0, 2688.0])
def test_nvfp4_keeps_peaks(value: float) -> None:
    """Scales have three bits after the first, and those of peaks from 1,536 on are the largest one."""
    x = np.full((1, 64), value, np.float32)
    restored = dequantize(quantize(x, QuantType.NVFP4), QuantType.NVFP4, x.shape)
    np.testing.assert_allclose(restored, x, rtol=1 / 12)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("type", K_QUANTS)
def test_k_quants_are_as_good_as_ggml(type: QuantType, name: str) -> None:
    found = error(WEIGHTS[name], type)
    assert found < 1.001 * REFERENCE_ERROR[name][type]
    assert found < 0.99 * rounded_error(WEIGHTS[name], type)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("type", FEW_BITS)
def test_few_bits_are_as_good_as_ggml(type: QuantType, name: str) -> None:
    assert error(WEIGHTS[name], type) < FEW_BITS_ERROR[name][type]


@pytest.mark.parametrize(
    ("name", "type"), [(name, type) for name, types in WEIGHTED_ERROR.items() for type in types]
)
def test_importance_is_used_as_well_as_by_ggml(name: str, type: QuantType) -> None:
    x = WEIGHTS[name].astype(np.float32)

    def weighted_error(data: np.ndarray) -> float:
        difference = dequantize(data, type, x.shape) - x
        return float(np.sqrt(np.mean(difference * difference * IMPORTANCE)) / x.std())

    informed = weighted_error(quantize(x, type, importance=IMPORTANCE))
    assert informed < 1.005 * WEIGHTED_ERROR[name][type]
    assert informed < 0.99 * weighted_error(quantize(x, type))


@pytest.mark.parametrize("type", [QuantType.Q5_1, QuantType.Q5_K])
def test_a_column_that_counts_a_millionfold(type: QuantType) -> None:
    """It comes out nearly exact, and the others do not get worse: sums keep their small terms."""
    x = WEIGHTS["normal"].astype(np.float32)
    importance = IMPORTANCE.copy()
    importance[77] = 1e6
    difference = dequantize(quantize(x, type, importance=importance), type, x.shape) - x
    others = dequantize(quantize(x, type, importance=IMPORTANCE), type, x.shape) - x
    assert np.abs(difference[:, 77]).max() < 0.002
    assert np.square(difference[:, 64:77]).mean() < 1.5 * np.square(others[:, 64:77]).mean()


def test_weights_on_a_lattice_keep_it_with_importance() -> None:
    """Q5_1 holds the values of Q4_1 exactly."""
    x = dequantize(quantize(WEIGHTS["normal"][:8], QuantType.Q4_1), QuantType.Q4_1, (8, SHAPE[1]))
    found = dequantize(quantize(x, QuantType.Q5_1, importance=IMPORTANCE), QuantType.Q5_1, x.shape)
    np.testing.assert_array_equal(found, x)


# Of the first rows on the grid of Q4_1, the error that ggml reaches without importance, with IMPORTANCE, and
# with a column that counts 20,000 times as much; and how far below it is expected, because all multiples
# around the best scales are compared.
ON_A_GRID = [
    ("none", Q.Q4_K, 0.01729, 0.8),
    ("none", Q.IQ3_XXS, 0.1828, 1.0),
    ("usual", Q.Q4_K, 0.01844, 0.85),
    ("usual", Q.Q5_K, 0.01846, 0.85),
    ("usual", Q.IQ3_XXS, 0.19546, 0.975),
    ("uneven", Q.Q2_K, 0.30425, 1.0),
    ("uneven", Q.Q4_K, 0.01904, 0.85),
    ("uneven", Q.Q5_K, 0.01911, 0.85),
]


@pytest.mark.parametrize(("name", "type", "reference", "share"), ON_A_GRID)
def test_weights_on_the_grid_of_another_type(name: str, type: Q, reference: float, share: float) -> None:
    shape = (16, SHAPE[1])
    x = dequantize(quantize(WEIGHTS["normal"][:16], Q.Q4_1), Q.Q4_1, shape)
    uneven = np.where(np.arange(SHAPE[1]) == 77, np.float32(2e4), IMPORTANCE)
    importance = {"none": None, "usual": IMPORTANCE, "uneven": uneven}[name]
    difference = dequantize(quantize(x, type, importance=importance), type, shape) - x
    squares = np.square(difference) * (1 if importance is None else importance)
    assert np.sqrt(squares.mean()) / x.std() < share * reference


def test_columns_without_importance_still_count() -> None:
    x = WEIGHTS["normal"][:4].astype(np.float32)
    importance = np.where(np.arange(SHAPE[1]) < 64, 0, IMPORTANCE).astype(np.float32)
    restored = dequantize(quantize(x, QuantType.Q4_K, importance=importance), QuantType.Q4_K, x.shape)
    assert np.abs(restored - x)[:, :64].max() < 0.5
    nothing = quantize(x, QuantType.Q4_K, importance=np.zeros(SHAPE[1], np.float32))
    assert np.abs(dequantize(nothing, QuantType.Q4_K, x.shape) - x).max() < 0.5


def test_types_of_many_bits_ignore_importance() -> None:
    x = WEIGHTS["normal"].astype(np.float32)
    np.testing.assert_array_equal(
        quantize(x, QuantType.Q8_0, importance=IMPORTANCE), quantize(x, QuantType.Q8_0)
    )


def test_weights_on_a_lattice_keep_it() -> None:
    """Weights trained for Q4_0 or Q4_1 have sixteen levels per block; only scales are rounded again."""
    levels = np.clip(np.rint(RNG.normal(7.5, 2.5, (2048, 32))), 0, 15)
    levels[:, :2] = 0, 15
    found = error((levels * 0.031 - 0.2).reshape(-1, 256), QuantType.Q4_K)
    assert found < 0.002


SUB_BLOCKS = {
    "normal": RNG.standard_normal((1003, 32)),
    "heavy tails": 100 * RNG.standard_t(2, (1003, 32)).clip(-600, 600),
    "one row": RNG.standard_normal((1, 32)),
    "zeros": np.zeros((5, 32)),
    "minus zeros": np.full((5, 32), -0.0),
    "constants": np.repeat(RNG.standard_normal((40, 1)), 32, axis=1),
    "huge": np.full((3, 32), 65504.0),
    "tiny": 1e-20 * RNG.standard_normal((50, 32)),
    "denormal": 1e-40 * RNG.standard_normal((50, 32)),
    "levels": RNG.integers(-3, 13, (300, 32)).astype(float),
}


HALVES = np.arange(-254, 258, dtype=np.float32).reshape(16, 32) / 2
SIGNED_ZEROS = np.copysign(0.0, RNG.standard_normal((100, 32)))
SIMPLE_BLOCKS = SUB_BLOCKS | {
    "zeros of both signs": SIGNED_ZEROS,
    "above zeros of both signs": np.where(RNG.random((100, 32)) < 0.3, 1.0, SIGNED_ZEROS),
    "below zeros of both signs": np.where(RNG.random((100, 32)) < 0.3, -1.0, SIGNED_ZEROS),
    "opposite extremes": np.clip(2 * RNG.standard_normal((100, 32)), -1, 1),
    "halves": np.where(np.arange(32) == 0, np.float32(127), HALVES),
    "subnormal halves": 1e-7 * RNG.standard_normal((50, 32)),
    "smallest scales": 10 ** RNG.uniform(-45, -30, (300, 1)) * RNG.uniform(-1, 1, (300, 32)),
    "scales that round": RNG.uniform(-1, 1, (300, 32)) * np.float32(65504),
}


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("name", SIMPLE_BLOCKS)
@pytest.mark.parametrize("type", [*SIMPLE, *COARSE])
def test_encoders_are_the_rule_to_the_bit(type: QuantType, name: str, isa: str) -> None:
    x = SIMPLE_BLOCKS[name].astype(np.float32)
    x = np.resize(x, (-(-x.size // 128) * 4, 32))
    out = np.empty(x.size // type.block_size * type.block_bytes, np.uint8)
    peak = _native.encode_blocks(int(type), x.reshape(-1), 65504.0, out, isa)
    assert peak == np.abs(x).max()
    assert out.tobytes() == encode_rule.encode(x, type)


@pytest.mark.parametrize("type", [QuantType.F32, QuantType.F16, QuantType.BF16])
@pytest.mark.parametrize("n", [0, 1, 15, 511, 513])
def test_numbers_of_any_count(type: QuantType, n: int) -> None:
    x = RNG.standard_normal(n).astype(np.float32)
    assert quantize(x, type).tobytes() == encode_rule.encode(x, type)


def test_encoders_refuse_types_and_sizes() -> None:
    x = np.zeros(64, np.float32)
    with pytest.raises(ValueError, match="there is no encoder for Q4_K"):
        _native.encode_blocks(int(QuantType.Q4_K), np.zeros(256, np.float32), 1.0, np.empty(144, np.uint8))
    with pytest.raises(ValueError, match="out does not hold x"):
        _native.encode_blocks(int(QuantType.Q8_0), x, 1.0, np.empty(67, np.uint8))


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", SUB_BLOCKS)
def test_searches_are_the_rule_to_the_bit(name: str, is_weighted: bool, isa: str) -> None:
    everything = SUB_BLOCKS[name].astype(np.float32)
    for top, size in ((3, 16), (15, 32), (31, 32)):
        x = everything.reshape(-1, size)
        weights = np.exp(RNG.standard_normal(x.shape)).astype(np.float32) if is_weighted else None
        found = _native.fit_affine(x, top, intervals(top), weights, isa)
        wanted = fit_rule.affine(x, top, intervals(top), weights)
        assert [each.tobytes() for each in found] == [each.tobytes() for each in wanted]
    for lowest, size in ((-4, 16), (-32, 16), (-16, 32), (-32, 8)):
        x = everything.reshape(-1, size)
        weights = np.exp(RNG.standard_normal(x.shape)).astype(np.float32) if is_weighted else None
        tried = places(lowest)
        scales = _native.fit_symmetric(x, lowest, -lowest - 1, tried, weights, isa)
        assert scales.tobytes() == fit_rule.symmetric(x, lowest, -lowest - 1, tried, weights).tobytes()
        scales = _native.fit_listed(x, IQ4_VALUES, 4 * tried, weights, isa)
        assert scales.tobytes() == fit_rule.listed(x, IQ4_VALUES, 4 * tried, weights).tobytes()


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("name", SUB_BLOCKS)
def test_searches_in_whole_blocks_are_the_rule_to_the_bit(name: str, isa: str) -> None:
    for high, size in ((2, 64), (1, 256)):
        x = np.resize(SUB_BLOCKS[name].astype(np.float32), (33, size))
        weights = np.exp(RNG.standard_normal(x.shape)).astype(np.float32)
        tried = 0.5 * places(-4)
        scales = _native.fit_symmetric(x, -1, high, tried, weights, isa)
        assert scales.tobytes() == fit_rule.symmetric(x, -1, high, tried, weights).tobytes()


@pytest.mark.parametrize("name", SUB_BLOCKS)
@pytest.mark.parametrize("size", [32, 64, 256])
def test_weights_of_elements_are_the_rule_to_the_bit(size: int, name: str) -> None:
    x = np.resize(SUB_BLOCKS[name].astype(np.float32), (33, size))
    importance = np.exp(RNG.standard_normal(x.shape)).astype(np.float32)
    for each in (None, importance):
        assert element_weights(x, each).tobytes() == lines_rule.element_weights(x, each).tobytes()


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("name", SUB_BLOCKS)
@pytest.mark.parametrize("type", lines_rule.SIZES)
def test_blocks_of_lines_are_the_rule_to_the_byte(type: QuantType, name: str, isa: str) -> None:
    """Of 21 blocks, the last five are fewer than the native code encodes at once."""
    x = np.resize(SUB_BLOCKS[name].astype(np.float32), (21, 256))
    importance = np.exp(2 * RNG.standard_normal(x.shape)).astype(np.float32)
    _, top, top_multiple = lines_rule.SIZES[type]
    for weights in (element_weights(x), element_weights(x, importance)):
        out = np.empty((len(x), type.block_bytes), np.uint8)
        tried = scale_places(top_multiple)
        _native.encode_lines(int(type), x, weights, intervals(top), tried, out, isa)
        assert out.tobytes() == lines_rule.encode(x, type, weights)


def test_searches_refuse_other_sizes() -> None:
    with pytest.raises(ValueError, match="sub-blocks have 8, 16 or 32 elements"):
        _native.fit_affine(np.zeros((2, 24), np.float32), 15, intervals(15))
    with pytest.raises(ValueError, match="there is one weight for each element"):
        _native.fit_symmetric(np.zeros((2, 16), np.float32), -4, 3, places(-4), np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="rows have 8, 16, 32, 64 or 256 elements"):
        _native.fit_symmetric(np.zeros((2, 128), np.float32), -1, 1, places(-4))
    with pytest.raises(ValueError, match="there are sixteen values"):
        _native.fit_listed(np.zeros((2, 16), np.float32), places(), places())
    with pytest.raises(ValueError, match="blocks have 32, 64, 128 or 256 elements"):
        _native.element_weights(np.zeros((2, 16), np.float32))
    x, steps, out = np.zeros((2, 256), np.float32), intervals(15), np.empty((2, 144), np.uint8)
    with pytest.raises(ValueError, match="the sub-blocks of Q6_K have no lines"):
        _native.encode_lines(int(Q.Q6_K), x, x, steps, steps, out)
    for values, blocks in ((x[:1], out), (x, out[:, :84].copy()), (np.zeros((2, 128), np.float32), out)):
        with pytest.raises(ValueError, match="out does not hold x"):
            _native.encode_lines(int(Q.Q4_K), values, values, steps, steps, blocks)


@pytest.mark.parametrize("type", [*SIMPLE, *COARSE, *SEARCHED, *FEW_LEVELS])
def test_threads_change_no_bit(type: QuantType) -> None:
    """It covers a last part that is shorter than the others."""
    x = RNG.standard_t(3, (101, 2304))
    alone = quantize(x, type, num_threads=1)
    for threads in (2, 3):
        np.testing.assert_array_equal(quantize(x, type, threads), alone)


def test_all_cores_quantize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three threads waits for the others."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    meeting = threading.Barrier(3, timeout=60)

    class Meeting(np.ndarray[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, slice):
                meeting.wait()
            return super().__getitem__(key)

    quantize(np.zeros((3, 1 << 16), np.float32).view(Meeting), QuantType.Q4_K)


@pytest.mark.parametrize("type", [*SIMPLE, *COARSE, *SEARCHED, *FEW_LEVELS])
def test_threads_refuse_what_is_not_finite(type: QuantType) -> None:
    x = np.zeros((101, 2304), np.float32)
    x[100, 7] = np.nan
    with pytest.raises(FormatError, match="infinite or not a number"):
        quantize(x, type, num_threads=2)


@pytest.mark.parametrize("type", [*SIMPLE, *COARSE, *SEARCHED, *FEW_LEVELS])
def test_zeros_stay_zero(type: QuantType) -> None:
    x = np.zeros((2, 256), np.float32)
    np.testing.assert_array_equal(dequantize(quantize(x, type), type, x.shape), x)


@pytest.mark.parametrize("value", [3.0, -3.0, 60000.0, 0.02])
@pytest.mark.parametrize("type", [*SIMPLE, *SEARCHED])
def test_constants_stay(type: QuantType, value: float) -> None:
    x = np.full((1, 256), value, np.float32)
    restored = dequantize(quantize(x, type), type, x.shape)
    np.testing.assert_allclose(restored, x, rtol=0.04 if type in FEW_BITS else 0.02)


FLOATS = st.floats(-60000, 60000, width=32) | st.sampled_from([0.0, 1e-38, -1e-30, 1e-7, 3.0, -3.0])


@settings(deadline=None)
@given(x=arrays(np.float32, (2, 256), elements=FLOATS), type=st.sampled_from([*SIMPLE, *SEARCHED]))
def test_any_values_stay_near(x: np.ndarray, type: QuantType) -> None:
    """No element changes by more than one coarse step of the largest value in its block.

    If the scale of a block has two levels, the product of the levels divides the largest value, and half
    precision, which ends at 6e-8, may round small scales to zero.
    """
    step = {QuantType.Q4_0: 1 / 7, QuantType.Q4_K: 1 / 6, QuantType.Q5_K: 1 / 12, QuantType.Q6_K: 1 / 16}
    step |= {QuantType.Q4_1: 1 / 7, QuantType.Q5_0: 1 / 15, QuantType.Q5_1: 1 / 15}
    step |= {QuantType.Q2_K: 1, QuantType.Q3_K: 1 / 2, QuantType.IQ4_NL: 1 / 4, QuantType.IQ4_XS: 1 / 3}
    levels = {Q.Q2_K: 15 * 3, Q.Q3_K: 32 * 4, Q.IQ4_NL: 128, Q.IQ4_XS: 32 * 128}
    levels |= {QuantType.Q4_K: 63 * 15, QuantType.Q5_K: 63 * 31, QuantType.Q6_K: 128 * 32}
    lost = max(1e-5, 6e-8 * levels.get(type, 0))
    restored = dequantize(quantize(x, type), type, x.shape)
    peak = np.abs(x).max(axis=1, keepdims=True)
    assert np.all(np.abs(restored - x) <= step.get(type, 1 / 120) * peak + lost)


def test_float64_and_three_dimensions() -> None:
    x = WEIGHTS["normal"][:4].reshape(2, 2, 2048)
    flat = quantize(x.astype(np.float32).reshape(4, 2048), QuantType.Q4_K)
    np.testing.assert_array_equal(quantize(x, QuantType.Q4_K), flat)
    assert flat.dtype == np.uint8
    assert flat.shape == (4 * 8 * 144,)


@pytest.mark.parametrize("type", [*SIMPLE, *COARSE, *SEARCHED, *FEW_LEVELS])
def test_stored_numbers_are_widened(type: QuantType) -> None:
    halves = WEIGHTS["normal"].astype(np.float16)
    np.testing.assert_array_equal(quantize(halves, type), quantize(halves.astype(np.float32), type))
    bits = encode_rule.bf16(WEIGHTS["normal"].astype(np.float32))
    np.testing.assert_array_equal(quantize(bits, type), quantize(as_float32(bits), type))


def test_a_chunk_of_plain_blocks_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a thread takes as long as encoding a million elements."""
    monkeypatch.setattr(quantize_module, "ThreadPoolExecutor", None)
    monkeypatch.setattr(quantize_module, "_num_cores", lambda: 16)
    assert len(quantize(np.zeros((1024, 1024), np.float32), QuantType.Q8_0)) == 34 << 15


@pytest.mark.parametrize(("bits", "run"), [(1, 1), (1, 32), (2, 32), (4, 16), (4, 64)])
def test_pack_is_the_inverse_of_unpack(bits: int, run: int) -> None:
    packed = RNG.integers(0, 256, (5, 128), np.uint8)
    np.testing.assert_array_equal(pack(unpack(packed, bits, run), bits, run), packed)


def test_pack_scales_6bit() -> None:
    packed = RNG.integers(0, 256, (500, 12), np.uint8)
    np.testing.assert_array_equal(lines_rule.pack_scales_6bit(*unpack_scales_6bit(packed)), packed)


@pytest.mark.parametrize(
    ("value", "type", "message"),
    [
        (np.nan, QuantType.Q8_0, "infinite or not a number cannot become Q8_0"),
        (np.inf, QuantType.BF16, "infinite or not a number cannot become BF16"),
        (65_536.0, QuantType.F16, "the value 65536 is too large for F16"),
        (3.4e38, QuantType.BF16, r"the value 3.4e\+38 is too large for BF16"),
        (-1e9, QuantType.Q4_K, r"the value 1e\+09 is too large for Q4_K"),
        (2689.0, QuantType.NVFP4, "the value 2689 is too large for NVFP4, whose limit is 2688"),
    ],
)
def test_values_out_of_range(value: float, type: QuantType, message: str) -> None:
    x = np.zeros((1, 256), np.float32)
    x[0, 3] = value
    with pytest.raises(FormatError, match=message):
        quantize(x, type)


def test_unsupported() -> None:
    with pytest.raises(
        UnsupportedError, match="quantizing to MXFP4 is not supported; choose one of F32, F16,"
    ):
        quantize(np.zeros((1, 256), np.float32), QuantType.MXFP4)
    with pytest.raises(FormatError, match="a row of 100 elements is not whole Q6_K blocks of 256"):
        quantize(np.zeros((1, 100), np.float32), QuantType.Q6_K)
