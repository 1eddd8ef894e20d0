"""The meaning of the bytes of all block formats, in NumPy.

`dequantize` is the definition that kernels are tested against; it is not meant to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski import _native
from chaski.errors import FormatError
from chaski.formats.quant import BlockFields, Bytes, Floats, PackedBlocks, QuantType, as_float32, row_bytes

_ELEMENTS_AT_ONCE = 1 << 18  # keeps the temporaries of one step near the cache and small next to a tensor

# The sixteen values of IQ4_NL and IQ4_XS: denser near zero, as weights are.
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Twice the sixteen values of FP4 (E2M1); the scale carries the half.
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def dequantize(data: Bytes, type: QuantType, shape: tuple[int, ...]) -> Floats:
    """Return the float32 values of a tensor.

    data: its bytes, uint8 of any shape; shape: in elements, outermost first. FormatError when they do not
    fit. Senseless bytes, such as an infinite scale, give what IEEE arithmetic gives, with no warning.
    """
    needed = row_bytes(type, shape[-1]) * math.prod(shape[:-1])
    if data.size != needed:
        raise FormatError(f"a {type.name} tensor of shape {shape} takes {needed} bytes, not {data.size}")
    return decode_blocks(np.ascontiguousarray(data).reshape(-1).view(type.layout), type).reshape(shape)


def decode_blocks(blocks: PackedBlocks, type: QuantType) -> Floats:
    """Return the float32 values of blocks: (blocks, elements)."""
    values = np.empty((len(blocks), type.block_size), np.float32)
    with np.errstate(all="ignore"):
        for part in block_slices(type, len(blocks)):
            values[part] = _DECODERS[type](blocks[part]).reshape(-1, type.block_size)
    return values


def block_slices(type: QuantType, count: int) -> Iterator[slice]:
    """Cut `count` blocks into slices that are worked on together."""
    step = max(1, _ELEMENTS_AT_ONCE // type.block_size)
    return (slice(begin, begin + step) for begin in range(0, count, step))


def unpack(packed: Bytes, bits: int, run: int) -> Bytes:
    """Split bytes into fields of `bits` bits: (blocks, bytes) -> (blocks, bytes * 8 // bits).

    Each run of `run` bytes gives first the lowest field of every byte, then the next higher one, and so on:
    with `bits=4, run=16`, sixteen low nibbles and then sixteen high ones.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(len(packed), -1, 1, run)
    fields: Bytes = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1)


def unpack_scales_6bit(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the 8 scales and the 8 minimums of Q4_K and Q5_K, 0 to 63: (blocks, 12) -> two of (blocks, 8).

    Bytes 0-3 hold scales 0-3, bytes 4-7 minimums 0-3, in their low six bits; the other halves have their low
    nibbles in bytes 8-11 (scale low, minimum high) and their upper two bits at the top of bytes 0-7.
    """
    low, top = packed[:, :8] & 63, packed[:, :8] >> 6 << 4
    rest = packed[:, 8:]
    scales = np.hstack([low[:, :4], rest & 15 | top[:, :4]])
    minimums = np.hstack([low[:, 4:], rest >> 4 | top[:, 4:]])
    return scales, minimums


def _float(values: NDArray[Any]) -> Floats:
    return values.astype(np.float32)


def _column(values: NDArray[Any]) -> Floats:
    """One float32 per block, shaped to multiply the block's elements."""
    return _float(values)[:, None]


def _decode_q4_0(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * (_float(unpack(blocks["qs"], 4, 16)) - 8)


def _decode_q4_1(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * _float(unpack(blocks["qs"], 4, 16)) + _column(blocks["m"])


def _five_bits(blocks: PackedBlocks, low_run: int, high_run: int) -> Floats:
    return _float(unpack(blocks["qs"], 4, low_run) | unpack(blocks["qh"], 1, high_run) << 4)


def _decode_q5_0(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * (_five_bits(blocks, 16, 1) - 16)


def _decode_q5_1(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * _five_bits(blocks, 16, 1) + _column(blocks["m"])


def _decode_q8_0(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * _float(blocks["qs"])


def _scaled(levels: Floats, scales: Floats) -> Floats:
    """Multiply each sub-block by its scale: (blocks, 256), (blocks, subs) -> (blocks, subs, n)."""
    return scales[:, :, None] * levels.reshape(*scales.shape, -1)


def _affine(blocks: PackedBlocks, levels: Floats, scales: BlockFields, minimums: BlockFields) -> Floats:
    """Apply the K-quant rule `d * scale * level - dmin * minimum`, rounded after each product."""
    offsets = _column(blocks["dmin"]) * _float(minimums)
    return _scaled(levels, _column(blocks["d"]) * _float(scales)) - offsets[:, :, None]


def _decode_q2_k(blocks: PackedBlocks) -> Floats:
    levels = _float(unpack(blocks["qs"], 2, 32))
    return _affine(blocks, levels, blocks["scales"] & 15, blocks["scales"] >> 4)


def _decode_q3_k(blocks: PackedBlocks) -> Floats:
    levels = _float(unpack(blocks["qs"], 2, 32) | unpack(blocks["hmask"], 1, 32) << 2) - 4
    low, high = blocks["scales"][:, :8], blocks["scales"][:, 8:]
    scales = _float(unpack(low, 4, 8) | unpack(high, 2, 4) << 4) - 32
    return _scaled(levels, _column(blocks["d"]) * scales)


def _decode_q4_k(blocks: PackedBlocks) -> Floats:
    return _affine(blocks, _float(unpack(blocks["qs"], 4, 32)), *unpack_scales_6bit(blocks["scales"]))


def _decode_q5_k(blocks: PackedBlocks) -> Floats:
    return _affine(blocks, _five_bits(blocks, 32, 32), *unpack_scales_6bit(blocks["scales"]))


def _decode_q6_k(blocks: PackedBlocks) -> Floats:
    levels = _float(unpack(blocks["ql"], 4, 64) | unpack(blocks["qh"], 2, 32) << 4) - 32
    return _scaled(levels, _column(blocks["d"]) * _float(blocks["scales"]))


def _decode_iq4_nl(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * IQ4_VALUES[unpack(blocks["qs"], 4, 16)]


def _decode_iq4_xs(blocks: PackedBlocks) -> Floats:
    scales = _float(unpack(blocks["scales_l"], 4, 1) | unpack(blocks["scales_h"], 2, 1) << 4) - 32
    return _scaled(IQ4_VALUES[unpack(blocks["qs"], 4, 16)], _column(blocks["d"]) * scales)


def _decode_mxfp4(blocks: PackedBlocks, run: int = 16) -> Floats:
    """The scale is 2^(e - 127) (OCP Microscaling, E8M0); halved, because the values are doubled."""
    scale = np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)
    return _column(scale) * FP4_VALUES[unpack(blocks["qs"], 4, run)]


def _decode_nvfp4(blocks: PackedBlocks) -> Floats:
    """A scale (E4M3 without its sign) for 16 elements; halved, because the values are doubled."""
    scales = (blocks["d"].astype("<u2") << 7 & 0x3F80).view("<f2")  # 2^8 times too small
    scales = np.where(blocks["d"] == 127, np.float32(0), _float(scales) * 128)
    return _scaled(FP4_VALUES[unpack(blocks["qs"], 4, 8)], scales)


def _decode_q1_0(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * (2 * _float(unpack(blocks["qs"], 1, 1)) - 1)


def _decode_q2_0(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * (_float(unpack(blocks["qs"], 2, 1)) - 1)


def _ternary_digits(packed: Bytes, count: int) -> Bytes:
    """Return the first digits of base 3 of bytes, which are fractions of 256: (blocks, count * bytes).

    The first digits of all bytes come first, then the second ones, and so on.
    """
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:count, None]
    fractions: Bytes = packed[:, None] * powers  # modulo 256
    digits: Bytes = (fractions.astype(np.uint16) * 3 >> 8).astype(np.uint8)
    return digits.reshape(len(packed), -1)


def _decode_tq1_0(blocks: PackedBlocks) -> Floats:
    parts = (blocks["qs"][:, :32], 5), (blocks["qs"][:, 32:], 5), (blocks["qh"], 4)
    digits = np.hstack([_ternary_digits(*part) for part in parts])
    return _column(blocks["d"]) * (_float(digits) - 1)


def _decode_tq2_0(blocks: PackedBlocks) -> Floats:
    return _column(blocks["d"]) * (_float(unpack(blocks["qs"], 2, 32)) - 1)


@cache
def _codebook(type: QuantType) -> Floats:
    """Return the entries of a type's codebook: (entries, 8) for IQ1 and IQ2, (entries, 4) for IQ3."""
    words = _native.codebook(int(type))
    if type in (QuantType.IQ3_XXS, QuantType.IQ3_S):
        levels = words[:, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
        is_small = type is QuantType.IQ3_XXS
        values = [4, 12, 20, 28, 36, 44, 52, 62] if is_small else [1, 3, 5, 7, 9, 11, 13, 15]
    else:
        levels = words[:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
        values = [-1, 0, 1] if type is QuantType.IQ1_S else [8, 25, 43]
    entries: Floats = np.array(values, np.float32)[levels]
    return entries


def _signs(bits: BlockFields) -> Floats:
    """Return -1 for each set bit of bytes, and 1 for the others: (blocks, n) -> (blocks, 8 n)."""
    return 1 - 2 * _float(unpack(bits.astype(np.uint8), 1, 1))


def _seven_signs(sevens: BlockFields) -> Floats:
    """Return eight signs for each seven bits. The eighth makes the number of negative signs even."""
    parity = np.bitwise_count(sevens) & 1
    return _signs(sevens | parity << 7)


def _four_sevens(words: BlockFields) -> tuple[Bytes, Bytes]:
    """Split 32-bit words into four fields of seven bits, and the four highest bits of each word."""
    fields = words[:, :, None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127
    return fields.reshape(len(words), -1).astype(np.uint8), (words >> 28).astype(np.uint8)


def _entries(type: QuantType, low: BlockFields, high: BlockFields | int = 0) -> Floats:
    """Return the codebook's entries for indices with these low bytes and higher bits: (blocks, 256)."""
    index = low.astype(np.int64) | np.int64(high) << 8
    entries: Floats = _codebook(type)[index].reshape(len(low), -1)
    return entries


def _odd(scales: BlockFields, unit: float) -> Floats:
    return np.float32(unit) * (2 * _float(scales) + 1)


def _decode_iq1_s(blocks: PackedBlocks) -> Floats:
    rest = blocks["qh"]
    high = rest[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    levels = _entries(QuantType.IQ1_S, blocks["qs"], high.reshape(len(blocks), -1))
    deltas = np.where(rest >> 15, np.float32(-0.125), np.float32(0.125)).repeat(32, axis=1)
    return _scaled(levels + deltas, _column(blocks["d"]) * _odd(rest >> 12 & 7, 1))


def _decode_iq1_m(blocks: PackedBlocks) -> Floats:
    words = blocks["scales"]
    quarters = words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=1).astype("<u2").view("<f2")
    scales = words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    rest = unpack(blocks["qh"], 4, 1)
    levels = _entries(QuantType.IQ1_S, blocks["qs"], rest & 7)
    deltas = np.where(rest >> 3, np.float32(-0.125), np.float32(0.125)).repeat(8, axis=1)
    return _scaled(levels + deltas, _column(d) * _odd(scales.reshape(len(blocks), -1), 1))


def _decode_iq2_xxs(blocks: PackedBlocks) -> Floats:
    halves = blocks["qs"].reshape(len(blocks), 8, 2, 4)
    sevens, scales = _four_sevens(halves[:, :, 1].copy().view("<u4").reshape(len(blocks), 8))
    levels = _entries(QuantType.IQ2_XXS, halves[:, :, 0].reshape(len(blocks), -1))
    return _scaled(levels * _seven_signs(sevens), _column(blocks["d"]) * _odd(scales, 0.125))


def _decode_iq2_xs(blocks: PackedBlocks) -> Floats:
    words = blocks["qs"]
    levels = _entries(QuantType.IQ2_XS, words & 511) * _seven_signs((words >> 9).astype(np.uint8))
    return _scaled(levels, _column(blocks["d"]) * _odd(unpack(blocks["scales"], 4, 1), 0.125))


def _decode_iq2_s(blocks: PackedBlocks) -> Floats:
    levels = _entries(QuantType.IQ2_S, blocks["qs"], unpack(blocks["qh"], 2, 1)) * _signs(blocks["signs"])
    return _scaled(levels, _column(blocks["d"]) * _odd(unpack(blocks["scales"], 4, 1), 0.125))


def _decode_iq3_xxs(blocks: PackedBlocks) -> Floats:
    sevens, scales = _four_sevens(blocks["signs"])
    levels = _entries(QuantType.IQ3_XXS, blocks["qs"]) * _seven_signs(sevens)
    return _scaled(levels, _column(blocks["d"]) * _odd(scales, 0.25))


def _decode_iq3_s(blocks: PackedBlocks) -> Floats:
    levels = _entries(QuantType.IQ3_S, blocks["qs"], unpack(blocks["qh"], 1, 1)) * _signs(blocks["signs"])
    return _scaled(levels, _column(blocks["d"]) * _odd(unpack(blocks["scales"], 4, 1), 1))


_DECODERS: dict[QuantType, Callable[[NDArray[Any]], Floats]] = {
    QuantType.F32: _float,
    QuantType.F16: _float,
    QuantType.BF16: as_float32,
    QuantType.F64: _float,
    QuantType.I8: _float,
    QuantType.I16: _float,
    QuantType.I32: _float,
    QuantType.I64: _float,
    QuantType.Q4_0: _decode_q4_0,
    QuantType.Q4_1: _decode_q4_1,
    QuantType.Q5_0: _decode_q5_0,
    QuantType.Q5_1: _decode_q5_1,
    QuantType.Q8_0: _decode_q8_0,
    QuantType.Q2_K: _decode_q2_k,
    QuantType.Q3_K: _decode_q3_k,
    QuantType.Q4_K: _decode_q4_k,
    QuantType.Q5_K: _decode_q5_k,
    QuantType.Q6_K: _decode_q6_k,
    QuantType.IQ4_NL: _decode_iq4_nl,
    QuantType.IQ4_XS: _decode_iq4_xs,
    QuantType.MXFP4: _decode_mxfp4,
    QuantType.MXFP4_INTERLEAVED: partial(_decode_mxfp4, run=1),
    QuantType.NVFP4: _decode_nvfp4,
    QuantType.Q1_0: _decode_q1_0,
    QuantType.Q2_0: _decode_q2_0,
    QuantType.TQ1_0: _decode_tq1_0,
    QuantType.TQ2_0: _decode_tq2_0,
    QuantType.IQ1_S: _decode_iq1_s,
    QuantType.IQ1_M: _decode_iq1_m,
    QuantType.IQ2_XXS: _decode_iq2_xxs,
    QuantType.IQ2_XS: _decode_iq2_xs,
    QuantType.IQ2_S: _decode_iq2_s,
    QuantType.IQ3_XXS: _decode_iq3_xxs,
    QuantType.IQ3_S: _decode_iq3_s,
}
