"""The block formats of GGUF tensors: their layouts and, in NumPy, what the bytes of nearly all mean.

Every row of a tensor is a whole number of blocks. A block stores `block_size` elements in `block_bytes`
bytes, little-endian. `dequantize` is the definition that kernels are tested against; it is not meant to be
fast.
Layouts: the ggml library, https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chaski.errors import FormatError, UnsupportedError

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
BlockFields: TypeAlias = NDArray[np.integer[Any]]  # small whole numbers, uint8 at run time
PackedBlocks: TypeAlias = NDArray[np.void]  # one record of the type's layout per block

_ELEMENTS_AT_ONCE = 1 << 18  # keeps the temporaries of one step near the cache and small next to a tensor


class QuantType(IntEnum):
    """The storage types of elements; the values are the type numbers of GGUF files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    BF16 = 30
    MXFP4 = 39
    # Ollama's first gpt-oss files have MXFP4 as OpenAI's checkpoint has it, under a number that ggml had
    # given up: byte j of a block holds elements 2 j and 2 j + 1, where MXFP4 has j and j + 16.
    MXFP4_INTERLEAVED = 4
    # Stored only: files with them can be looked at, and computed by llama.cpp.
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ3_S = 21
    IQ2_S = 22
    IQ1_M = 29
    TQ1_0 = 34
    TQ2_0 = 35
    NVFP4 = 40
    Q1_0 = 41

    @property
    def is_known(self) -> bool:
        """True if the type's bytes can be decoded here."""
        return self in _DECODERS

    @property
    def block_size(self) -> int:
        """Elements in a block; 1 for plain numbers."""
        return _LAYOUTS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return _LAYOUTS[self][1].itemsize

    @property
    def layout(self) -> np.dtype[Any]:
        """The block as a NumPy data type: a number, or a record with ggml's field names."""
        return _LAYOUTS[self][1]


# Types of ggml that no file has: activations are stored so while they are computed with.
UNSUPPORTED_TYPES = {9: "Q8_1", 15: "Q8_K"}
REMOVED_TYPES = {
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

_LAYOUTS: dict[QuantType, tuple[int, np.dtype[Any]]] = {
    QuantType.F32: (1, np.dtype("<f4")),
    QuantType.F16: (1, np.dtype("<f2")),
    QuantType.BF16: (1, np.dtype("<u2")),
    QuantType.F64: (1, np.dtype("<f8")),
    QuantType.I8: (1, np.dtype("i1")),
    QuantType.I16: (1, np.dtype("<i2")),
    QuantType.I32: (1, np.dtype("<i4")),
    QuantType.I64: (1, np.dtype("<i8")),
    QuantType.Q4_0: (32, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    QuantType.Q4_1: (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])),
    QuantType.Q5_0: (32, np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    QuantType.Q5_1: (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])),
    QuantType.Q8_0: (32, np.dtype([("d", "<f2"), ("qs", "i1", 32)])),
    QuantType.Q2_K: (
        256,
        np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")]),
    ),
    QuantType.Q3_K: (
        256,
        np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]),
    ),
    QuantType.Q4_K: (
        256,
        np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]),
    ),
    QuantType.Q5_K: (
        256,
        np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]),
    ),
    QuantType.Q6_K: (
        256,
        np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]),
    ),
    QuantType.IQ4_NL: (32, np.dtype([("d", "<f2"), ("qs", "u1", 16)])),
    QuantType.IQ4_XS: (
        256,
        np.dtype([("d", "<f2"), ("scales_h", "u1", 2), ("scales_l", "u1", 4), ("qs", "u1", 128)]),
    ),
    QuantType.MXFP4: (32, np.dtype([("e", "u1"), ("qs", "u1", 16)])),
    QuantType.MXFP4_INTERLEAVED: (32, np.dtype([("e", "u1"), ("qs", "u1", 16)])),
    QuantType.IQ2_XXS: (256, np.dtype("V66")),
    QuantType.IQ2_XS: (256, np.dtype("V74")),
    QuantType.IQ3_XXS: (256, np.dtype("V98")),
    QuantType.IQ1_S: (256, np.dtype("V50")),
    QuantType.IQ3_S: (256, np.dtype("V110")),
    QuantType.IQ2_S: (256, np.dtype("V82")),
    QuantType.IQ1_M: (256, np.dtype("V56")),
    QuantType.TQ1_0: (256, np.dtype("V54")),
    QuantType.TQ2_0: (256, np.dtype("V66")),
    QuantType.NVFP4: (64, np.dtype("V36")),
    QuantType.Q1_0: (128, np.dtype("V18")),
}

# The sixteen values of IQ4_NL and IQ4_XS: denser near zero, as weights are.
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Twice the sixteen values of FP4 (E2M1); the scale carries the half.
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def row_bytes(type: QuantType, n: int) -> int:
    """Return the bytes of a row of `n` elements; FormatError when that is not a whole number of blocks."""
    if n % type.block_size:
        raise FormatError(f"a row of {n} elements is not whole {type.name} blocks of {type.block_size}")
    return n // type.block_size * type.block_bytes


def dequantize(data: Bytes, type: QuantType, shape: tuple[int, ...]) -> Floats:
    """Return the float32 values of a tensor.

    data: its bytes, uint8 of any shape; shape: in elements, outermost first. FormatError when they do not
    fit, UnsupportedError for a type whose bytes are not known. Senseless bytes, such as an infinite scale,
    give what IEEE arithmetic gives, with no warning.
    """
    if not type.is_known:
        raise UnsupportedError(f"values of type {type.name} cannot be read by this version")
    needed = row_bytes(type, shape[-1]) * math.prod(shape[:-1])
    if data.size != needed:
        raise FormatError(f"a {type.name} tensor of shape {shape} takes {needed} bytes, not {data.size}")
    blocks = np.ascontiguousarray(data).reshape(-1).view(type.layout)
    values = np.empty((len(blocks), type.block_size), np.float32)
    with np.errstate(all="ignore"):
        for part in block_slices(type, len(blocks)):
            values[part] = _DECODERS[type](blocks[part]).reshape(-1, type.block_size)
    return values.reshape(shape)


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


def _decode_bf16(blocks: NDArray[np.uint16]) -> Floats:
    return (blocks.astype(np.uint32) << 16).view(np.float32)


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


_DECODERS: dict[QuantType, Callable[[NDArray[Any]], Floats]] = {
    QuantType.F32: _float,
    QuantType.F16: _float,
    QuantType.BF16: _decode_bf16,
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
}
