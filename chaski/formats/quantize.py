"""Quantization: float tensors to the blocks of `quant.py`, on all cores.

The types with blocks of 32 follow ggml's rule to the bit. For the K-quants, the native core searches for the
scales: the format fixes the meaning of a block, but not the choice of its numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.errors import FormatError, UnsupportedError
from chaski.formats.quant import BlockFields, Bytes, Floats, PackedBlocks, QuantType, row_bytes
from chaski.formats.scale_search import extreme, fit_affine, fit_symmetric, nearest_levels, reciprocal

_HALF_MAX = 65504.0
_ELEMENTS_OF_A_PART = 1 << 16  # a core's cache holds them; a chunk of a million has parts for 16 cores


def quantize(array: NDArray[np.floating[Any]], type: QuantType, num_threads: int | None = None) -> Bytes:
    """Return the bytes of `array` as a tensor of `type`: uint8, one dimension.

    num_threads: by default one per core. The bytes do not depend on it.

    Types: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K; UnsupportedError for others.
    FormatError when the rows are not whole blocks, or a value is infinite, not a number or too large for the
    type.
    """
    if type not in _ENCODERS:
        raise UnsupportedError(f"quantizing to {type.name} is not supported; " + _choices())
    row_bytes(type, array.shape[-1])
    values = array.reshape(-1, type.block_size)
    blocks = np.empty(len(values), type.layout)

    def encode(part: slice) -> None:
        floats = values[part].astype(np.float32)
        _check_range(floats, type)
        blocks[part] = _ENCODERS[type](floats)

    step = _ELEMENTS_OF_A_PART // type.block_size
    parts = [slice(begin, begin + step) for begin in range(0, len(values), step)]
    threads = min(len(parts), num_threads or _num_cores())
    if threads < 2:
        for part in parts:
            encode(part)
    else:
        with ThreadPoolExecutor(threads, "chaski-quantize") as pool:
            list(pool.map(encode, parts))
    return blocks.view(np.uint8)


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pack(fields: BlockFields, bits: int, run: int) -> Bytes:
    """Put fields of `bits` bits together; the inverse of `dequantize.unpack`."""
    per_byte = 8 // bits
    runs = fields.reshape(len(fields), -1, per_byte, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    packed: Bytes = np.bitwise_or.reduce(runs << shifts, axis=2)
    return packed.reshape(len(fields), -1)


def pack_scales_6bit(scales: Bytes, minimums: Bytes) -> Bytes:
    """Put 8 scales and 8 minimums of six bits into 12 bytes, as `unpack_scales_6bit` reads them."""
    low = np.hstack([scales[:, :4], minimums[:, :4]])
    top = np.hstack([scales[:, 4:], minimums[:, 4:]]) >> 4 << 6
    rest = scales[:, 4:] & 15 | minimums[:, 4:] << 4
    return np.hstack([low | top, rest])


def _choices() -> str:
    return "choose one of " + ", ".join(type.name for type in _ENCODERS)


def _check_range(values: Floats, type: QuantType) -> None:
    peak = np.abs(values).max(initial=0.0)
    wide = type in (QuantType.F32, QuantType.BF16)
    if not np.isfinite(peak):
        raise FormatError(f"a tensor with values that are infinite or not a number cannot become {type.name}")
    if peak > _HALF_MAX and not wide:
        raise FormatError(f"the value {peak:g} is too large for {type.name}, whose limit is {_HALF_MAX:g}")


def _encode_f32(values: Floats) -> Floats:
    return values.reshape(-1)


def _encode_f16(values: Floats) -> NDArray[np.float16]:
    return values.reshape(-1).astype(np.float16)


def _encode_bf16(values: Floats) -> NDArray[np.uint16]:
    """Round to nearest, ties to even."""
    bits = values.reshape(-1).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _encode_q8_0(values: Floats) -> PackedBlocks:
    """The largest magnitude becomes level 127; halves round away from zero."""
    blocks = np.empty(len(values), QuantType.Q8_0.layout)
    d = np.abs(values).max(axis=1) / np.float32(127)
    scaled = values * reciprocal(d)[:, None]
    whole = np.trunc(scaled)
    blocks["d"] = d
    blocks["qs"] = whole + np.copysign(np.abs(scaled - whole) >= 0.5, scaled)
    return blocks


def _encode_q4_0(values: Floats) -> PackedBlocks:
    """The value of largest magnitude becomes level -8, whatever its sign."""
    blocks = np.empty(len(values), QuantType.Q4_0.layout)
    d = extreme(values) / np.float32(-8)
    levels = np.trunc(values * reciprocal(d)[:, None] + np.float32(8.5))
    blocks["d"] = d
    blocks["qs"] = pack(np.clip(levels, 0, 15).astype(np.uint8), 4, 16)
    return blocks


def _encode_q4_1(values: Floats) -> PackedBlocks:
    """The smallest value becomes level 0, the largest level 15."""
    blocks = np.empty(len(values), QuantType.Q4_1.layout)
    blocks["qs"] = pack(_span_levels(blocks, values, 15), 4, 16)
    return blocks


def _encode_q5_0(values: Floats) -> PackedBlocks:
    """The value of largest magnitude becomes level -16, whatever its sign."""
    blocks = np.empty(len(values), QuantType.Q5_0.layout)
    d = extreme(values) / np.float32(-16)
    levels = np.trunc(values * reciprocal(d)[:, None] + np.float32(16.5))
    blocks["d"] = d
    _put_five_bits(blocks, np.clip(levels, 0, 31).astype(np.uint8))
    return blocks


def _encode_q5_1(values: Floats) -> PackedBlocks:
    """The smallest value becomes level 0, the largest level 31."""
    blocks = np.empty(len(values), QuantType.Q5_1.layout)
    _put_five_bits(blocks, _span_levels(blocks, values, 31))
    return blocks


def _span_levels(blocks: PackedBlocks, values: Floats, top: int) -> Bytes:
    """Fill in scale and minimum of Q4_1 or Q5_1 blocks and return the levels, 0 to `top`: (blocks, 32)."""
    low = values.min(axis=1)
    d = (values.max(axis=1) - low) / np.float32(top)
    blocks["d"], blocks["m"] = d, low
    levels = np.trunc((values - low[:, None]) * reciprocal(d)[:, None] + np.float32(0.5))
    whole: Bytes = np.clip(levels, 0, top).astype(np.uint8)
    return whole


def _put_five_bits(blocks: PackedBlocks, levels: Bytes) -> None:
    """Spread levels over the four low bits in `qs` and the fifth in `qh`."""
    blocks["qs"] = pack(levels & 15, 4, 16)
    blocks["qh"] = pack(levels >> 4, 1, 1)


def _encode_q4_k(values: Floats) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.Q4_K.layout)
    levels = _encode_affine(blocks, values, 15)
    blocks["qs"] = pack(levels, 4, 32)
    return blocks


def _encode_q5_k(values: Floats) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.Q5_K.layout)
    levels = _encode_affine(blocks, values, 31)
    blocks["qs"] = pack(levels & 15, 4, 32)
    blocks["qh"] = pack(levels >> 4, 1, 32)
    return blocks


def _encode_affine(blocks: PackedBlocks, values: Floats, top: int) -> Bytes:
    """Fill in the scales and minimums of Q4_K or Q5_K blocks and return the levels: (blocks, 256)."""
    parts = values.reshape(-1, 32)
    scales, minimums = (fit.reshape(-1, 8) for fit in fit_affine(parts, top))
    blocks["d"] = scales.max(axis=1) / np.float32(63)
    blocks["dmin"] = minimums.max(axis=1) / np.float32(63)
    d, dmin = (blocks[field].astype(np.float32)[:, None] for field in ("d", "dmin"))
    scale_levels = nearest_levels(scales * reciprocal(d), 0, 63)
    minimum_levels = nearest_levels(minimums * reciprocal(dmin), 0, 63)
    blocks["scales"] = pack_scales_6bit(scale_levels.astype(np.uint8), minimum_levels.astype(np.uint8))
    stored_scales = (d * scale_levels).reshape(-1, 1)
    stored_minimums = (dmin * minimum_levels).reshape(-1, 1)
    levels = nearest_levels((parts + stored_minimums) * reciprocal(stored_scales), 0, top)
    return levels.astype(np.uint8).reshape(len(values), 256)


def _encode_q6_k(values: Floats) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.Q6_K.layout)
    parts = values.reshape(-1, 16)
    scales = fit_symmetric(parts).reshape(-1, 16)
    blocks["d"] = extreme(scales) / np.float32(-128)
    d = blocks["d"].astype(np.float32)[:, None]
    scale_levels = nearest_levels(scales * reciprocal(d), -128, 127)
    blocks["scales"] = scale_levels
    levels = nearest_levels(parts * reciprocal((d * scale_levels).reshape(-1, 1)), -32, 31) + 32
    fields = levels.astype(np.uint8).reshape(-1, 256)
    blocks["ql"] = pack(fields & 15, 4, 64)
    blocks["qh"] = pack(fields >> 4, 2, 32)
    return blocks


_ENCODERS: dict[QuantType, Callable[[Floats], NDArray[Any]]] = {
    QuantType.F32: _encode_f32,
    QuantType.F16: _encode_f16,
    QuantType.BF16: _encode_bf16,
    QuantType.Q4_0: _encode_q4_0,
    QuantType.Q4_1: _encode_q4_1,
    QuantType.Q5_0: _encode_q5_0,
    QuantType.Q5_1: _encode_q5_1,
    QuantType.Q8_0: _encode_q8_0,
    QuantType.Q4_K: _encode_q4_k,
    QuantType.Q5_K: _encode_q5_k,
    QuantType.Q6_K: _encode_q6_k,
}
