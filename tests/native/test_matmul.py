"""The matmul kernels against the numeric rule, and against each other, bit for bit.

The rule (native/include/matmul.h): activations as int8 in blocks of 32 or super-blocks of 256, exact
integer sums per weight block, scales applied by fused multiply-add along k, in one order for every
instruction set and number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from chaski import _native
from chaski.formats.dequantize import dequantize
from chaski.formats.quant import QuantType
from tests.native.matmul_rule import (
    QUANTIZED_TYPES,
    SUPER_TYPES,
    TYPES,
    activations,
    assert_close,
    fma,
    pack,
    quantize,
    quantize_super,
    random_weights,
    rounded,
    seen,
    set_scales,
    widths,
)
from tests.tiers import long_unless

ROWS = [1, 15, 16, 17, 100]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 70]
# A block of tokens that pass together, and one token more than one and two blocks.
BLOCKS = [256, 257, 513]


def _put_iq2_xxs(blocks: NDArray[np.void], entry: int) -> None:
    blocks["qs"].reshape(*blocks.shape, 8, 2, 4)[..., 0, :] = entry


def _put_iq2_xs(blocks: NDArray[np.void], entry: int) -> None:
    blocks["qs"] = blocks["qs"] & 0xFE00 | entry


def _put_iq2_s(blocks: NDArray[np.void], entry: int) -> None:
    blocks["qs"], blocks["qh"] = entry & 255, 0x55 * (entry >> 8)


def _put_iq3_xxs(blocks: NDArray[np.void], entry: int) -> None:
    blocks["qs"] = entry


def _put_iq3_s(blocks: NDArray[np.void], entry: int) -> None:
    blocks["qs"], blocks["qh"] = entry & 255, 0xFF * (entry >> 8)


def _put_iq1_s(blocks: NDArray[np.void], entry: int) -> None:
    blocks["qs"], blocks["qh"] = entry & 255, blocks["qh"] & 0xF000 | 0o1111 * (entry >> 8)


def _put_iq1_m(blocks: NDArray[np.void], entry: int) -> None:
    blocks["qs"], blocks["qh"] = entry & 255, blocks["qh"] & 0x88 | 0x11 * (entry >> 8)


# Write an entry of the codebook as that of all elements.
_PUT_EVERYWHERE: dict[QuantType, Callable[[NDArray[np.void], int], None]] = {
    QuantType.IQ2_XXS: _put_iq2_xxs,
    QuantType.IQ2_XS: _put_iq2_xs,
    QuantType.IQ2_S: _put_iq2_s,
    QuantType.IQ3_XXS: _put_iq3_xxs,
    QuantType.IQ3_S: _put_iq3_s,
    QuantType.IQ1_S: _put_iq1_s,
    QuantType.IQ1_M: _put_iq1_m,
}


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("rows", long_unless([1, 17], ROWS))
def test_equals_the_definition(type: QuantType, rows: int) -> None:
    for k in widths(type):
        data = random_weights(type, rows, k)
        weights = dequantize(data, type, (rows, k))
        matrix = pack(data, type, rows, k)
        for n in TOKENS if rows == 17 else [1, 7]:
            x = activations(n, k)
            for in_super_blocks in {False, k % 256 == 0}:
                found = _native.matmul(matrix, x, in_super_blocks=in_super_blocks)
                assert_close(found, seen(type, x, in_super_blocks), weights)


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_instruction_sets_agree_bit_for_bit(type: QuantType) -> None:
    for rows, k in [(17, widths(type)[1]), (100, widths(type)[2])]:
        data = random_weights(type, rows, k)
        x = activations(33, k)
        results, panels = [], []
        for isa in _native.isa_names():
            matrix = pack(data, type, rows, k, isa)
            panels.append(matrix.panels())
            for n in (1, 2, 3, 4, 33):
                results.append((isa, n, _native.matmul(matrix, x[:n], isa)))
        assert all(p == panels[0] for p in panels)
        whole = results[-1][2]
        for isa, n, y in results:
            assert np.array_equal(y, whole[:n]), (isa, n)


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_every_batch_size_gives_the_same_bits(type: QuantType) -> None:
    rows, k = 40, widths(type)[1]
    matrix = pack(random_weights(type, rows, k), type, rows, k)
    x = activations(BLOCKS[-1], k)
    whole = _native.matmul(matrix, x)
    for n in [*TOKENS, 13, 17, 25, *BLOCKS]:
        first, last = _native.matmul(matrix, x[:n]), _native.matmul(matrix, x[-n:])
        assert np.array_equal(first, whole[:n]), n
        assert np.array_equal(last, whole[-n:]), n


@pytest.mark.parametrize("isa", _native.isa_names()[1:] or _native.isa_names())
@pytest.mark.parametrize("type", QUANTIZED_TYPES, ids=lambda t: t.name)
def test_variants_change_no_bit(type: QuantType, isa: str) -> None:
    rows, k = 16 * 26 + 3, widths(type)[1]  # more panels than any variant unpacks together
    matrix = pack(random_weights(type, rows, k), type, rows, k, isa)
    x = activations(BLOCKS[1], k)
    for n in [*range(1, 14), 24, 65, BLOCKS[1]]:
        first = _native.matmul(matrix, x[:n], isa)
        for variant, name in enumerate(_native.variant_names(int(type), n, isa)):
            assert np.array_equal(_native.matmul(matrix, x[:n], isa, variant=variant), first), (n, name)
    with pytest.raises(ValueError, match="no variant 99 of"):
        _native.matmul(matrix, x[:1], isa, variant=99)


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_rows_unpack_exactly(type: QuantType, isa: str) -> None:
    rows, k = 19, widths(type)[1]
    data = random_weights(type, rows, k)
    order = np.array([18, 0, 7, 15, 16], np.int64)
    out = _native.unpack_rows(pack(data, type, rows, k, isa), order, isa)
    assert np.array_equal(out, dequantize(data, type, (rows, k))[order])


@pytest.mark.parametrize("isa", _native.isa_names())
def test_the_order_of_roundings_is_the_rule(isa: str) -> None:
    """Q4_1 stores a scale and a min directly, so the test can follow the rule exactly, step by step."""
    rows, k = 5, 160
    data = random_weights(QuantType.Q4_1, rows, k)
    blocks = data.view(QuantType.Q4_1.layout).reshape(rows, -1)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.int64)
    x = activations(6, k)
    values, scales = quantize(x)
    y = _native.matmul(pack(data, QuantType.Q4_1, rows, k), x, isa)
    for token, row in np.ndindex(*y.shape):
        total = np.float32(0)
        for b in range(k // 32):
            scale, minimum = np.float32(blocks["d"][row, b]), -np.float32(blocks["m"][row, b])
            products = np.float32(codes[row, b] @ values[token, b])
            total = fma(products, scale * scales[token, b], total)
            total = fma(minimum, -(scales[token, b] * np.float32(values[token, b].sum())), total)
        assert y[token, row] == total


@pytest.mark.parametrize("isa", _native.isa_names())
def test_the_order_of_roundings_of_super_blocks_is_the_rule(isa: str) -> None:
    """It does the same for Q2_K, the simplest type with super-blocks and mins."""
    rows, k = 3, 512
    data = random_weights(QuantType.Q2_K, rows, k)
    blocks = data.view(QuantType.Q2_K.layout).reshape(rows, -1)
    pairs = blocks["qs"].reshape(rows, k // 256, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = pairs.reshape(rows, k // 256, 16, 16).astype(np.int64)
    parts = blocks["scales"].astype(np.int64)
    x = activations(4, k) * np.repeat(np.float32(2.0) ** np.arange(-8, 8), 32).astype(np.float32)
    values, shifts, scales = quantize_super(x)
    assert set(shifts.ravel()) == set(range(5))
    wide = (values << shifts[..., None]).reshape(len(x), -1, 16, 16)
    y = _native.matmul(pack(data, QuantType.Q2_K, rows, k), x, isa)
    for token, row in np.ndindex(*y.shape):
        total = np.float32(0)
        for b in range(k // 256):
            products = np.float32(
                ((codes[row, b] * wide[token, b]).sum(axis=-1) * (parts[row, b] & 15)).sum()
            )
            mins = np.float32((wide[token, b].sum(axis=-1) * (parts[row, b] >> 4)).sum())
            d, dmin = np.float32(blocks["d"][row, b]), np.float32(blocks["dmin"][row, b])
            total = fma(fma(mins, -dmin, products * d), scales[token, b], total)
        assert y[token, row] == total


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", SUPER_TYPES, ids=lambda t: t.name)
def test_blocks_of_very_different_sizes(type: QuantType, isa: str) -> None:
    """Every shift, sums of magnitudes above the limit in the largest block and in others, and zeros."""
    rng = np.random.default_rng(3)
    rows, k = 16, 1024
    sizes = np.float32(2.0) ** rng.integers(-12, 12, (9, k // 32, 1)).astype(np.float32)
    flat = rng.choice(np.float32([1, -1]), (9, k // 32, 32)) * (rng.random((9, k // 32, 1)) < 0.5)
    x = ((rng.standard_normal((9, k // 32, 32)) + 3 * flat) * sizes).astype(np.float32).reshape(9, k)
    x[0, :256], x[1, 256:512], x[2] = 0, 1, -1
    data = random_weights(type, rows, k)
    y = _native.matmul(pack(data, type, rows, k), x, isa)
    assert_close(y, rounded(x, in_super_blocks=True), dequantize(data, type, (rows, k)))


@pytest.mark.parametrize("isa", _native.isa_names())
def test_float_types_add_in_order(isa: str) -> None:
    w, x = activations(3, 50, seed=5), activations(7, 50, seed=6)
    y = _native.matmul(pack(w.view(np.uint8), QuantType.F32, 3, 50), x, isa)
    for token, row in np.ndindex(*y.shape):
        total = np.float32(0)
        for i in range(50):
            total = fma(w[row, i], x[token, i], total)
        assert y[token, row] == total


@pytest.mark.parametrize("isa", _native.isa_names())
def test_largest_codes_do_not_saturate(isa: str) -> None:
    """All codes and all activations at their extremes: 16-bit sums inside a kernel would overflow."""
    for type in QUANTIZED_TYPES:
        k = 2 * type.block_size
        for fill in (0x00, 0x7F, 0x80, 0xFF):
            data = np.full((16, k // type.block_size * type.block_bytes), fill, np.uint8)
            blocks = data.view(type.layout)
            set_scales(blocks, type, lambda: 0.01)
            if type is QuantType.MXFP4:
                blocks["e"] = 127
            weights = dequantize(data, type, (16, k))
            for x in (np.ones((6, k), np.float32), -np.ones((6, k), np.float32)):
                y = _native.matmul(pack(data, type, 16, k), x, isa)
                assert_close(y, seen(type, x), weights)


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", _PUT_EVERYWHERE, ids=lambda t: t.name)
def test_largest_entries_do_not_saturate(type: QuantType, isa: str) -> None:
    """The entry with the largest levels everywhere, and for each row a token with all of its signs."""
    data = random_weights(type, 17, 512)
    levels = _native.codebook(int(type))[:, None] >> np.arange(0, 16, 2) & 3
    if type in (QuantType.IQ3_XXS, QuantType.IQ3_S):
        levels = _native.codebook(int(type))[:, None] >> np.arange(0, 12, 3) & 7
    _PUT_EVERYWHERE[type](data.view(type.layout), int(levels.sum(axis=1).argmax()))
    weights = dequantize(data, type, (17, 512))
    x = np.sign(weights).astype(np.float32)
    y = _native.matmul(pack(data, type, 17, 512), x, isa)
    assert_close(y, seen(type, x), weights)


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", [QuantType.Q8_0, QuantType.Q4_K, QuantType.Q6_K], ids=lambda t: t.name)
def test_zero_tiny_and_unbounded_activations(type: QuantType, isa: str) -> None:
    matrix = pack(random_weights(type, 16, 512), type, 16, 512)
    x = activations(5, 512)
    clean = _native.matmul(matrix, x, isa)
    x[0] = 0
    x[1] = 1e-38
    x[2, 40], x[3, 3] = np.nan, np.inf
    y = _native.matmul(matrix, x, isa)
    assert np.all(y[:2] == 0)
    assert np.all(np.isnan(y[2]))
    assert not np.any(np.isfinite(y[3]))
    assert np.array_equal(y[4], clean[4])


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", [QuantType.Q4_K, QuantType.F16], ids=lambda t: t.name)
def test_bias_then_residual(type: QuantType, isa: str) -> None:
    rows, k = 21, 256
    matrix = pack(random_weights(type, rows, k), type, rows, k)
    bias, residual = activations(1, rows)[0], activations(9, rows)
    for n in (1, 9):
        x = activations(9, k)[:n]
        y = _native.matmul(matrix, x, isa)
        assert np.array_equal(_native.matmul(matrix, x, isa, bias), y + bias)
        both = _native.matmul(matrix, x, isa, bias, residual[:n])
        assert np.array_equal(both, (y + bias) + residual[:n])


def test_half_precision_widens_exactly() -> None:
    every = np.arange(1 << 16, dtype="<u2")
    with np.errstate(invalid="ignore"):  # ARM's conversion reports signaling NaNs
        widened = every.view("<f2").astype(np.float32)
    for isa in _native.isa_names():
        for type, values in [
            (QuantType.F16, widened),
            (QuantType.BF16, (every.astype(np.uint32) << 16).view(np.float32)),
        ]:
            got = _native.unpack_rows(
                pack(every.view(np.uint8), type, 1, 1 << 16, isa), np.zeros(1, np.int64), isa
            )[0]
            assert np.array_equal(got, values, equal_nan=True)


def test_every_exponent_of_mxfp4() -> None:
    data = np.zeros((256, 17), np.uint8)
    data[:, 0], data[:, 1:] = np.arange(256), 0x27
    weights = dequantize(data, QuantType.MXFP4, (256, 32))
    for isa in _native.isa_names():
        matrix = pack(data, QuantType.MXFP4, 256, 32, isa)
        assert np.array_equal(_native.unpack_rows(matrix, np.arange(256), isa), weights)


def test_every_scale_of_nvfp4() -> None:
    data = np.full((64, 36), 0x27, np.uint8)
    data[:, :4] = np.arange(256).reshape(64, 4)
    weights = dequantize(data, QuantType.NVFP4, (64, 64))
    for isa in _native.isa_names():
        matrix = pack(data, QuantType.NVFP4, 64, 64, isa)
        assert np.array_equal(_native.unpack_rows(matrix, np.arange(64), isa), weights)


def test_unusable_arguments_are_refused() -> None:
    data = random_weights(QuantType.Q8_0, 4, 64)
    matrix = pack(data, QuantType.Q8_0, 4, 64)
    with pytest.raises(ValueError, match="type 99"):
        _native.pack_matrix(99, data.reshape(-1), 4, 64)
    with pytest.raises(ValueError, match="does not fit blocks of 32"):
        _native.pack_matrix(int(QuantType.Q8_0), data.reshape(-1), 4, 63)
    with pytest.raises(ValueError, match="5 rows of 68 expected"):
        _native.pack_matrix(int(QuantType.Q8_0), data.reshape(-1), 5, 64)
    with pytest.raises(ValueError, match="x has 32 columns, the matrix 64"):
        _native.matmul(matrix, activations(1, 32))
    with pytest.raises(ValueError, match="bias"):
        _native.matmul(matrix, activations(1, 64), "auto", activations(1, 3)[0])
    with pytest.raises(ValueError, match="residual"):
        _native.matmul(matrix, activations(2, 64), "auto", None, activations(1, 4))
    with pytest.raises(ValueError, match="row 4 of 4"):
        _native.unpack_rows(matrix, np.array([4], np.int64))
    with pytest.raises(ValueError, match="64 columns are no multiple of a super-block"):
        _native.matmul(matrix, activations(1, 64), in_super_blocks=True)
    with pytest.raises(ValueError, match="sse9"):
        _native.matmul(matrix, activations(1, 64), "sse9")
