"""Quantization: float tensors to the blocks of `quant.py`, on all cores.

The native core computes. Plain numbers and blocks of 32 are ggml's to the bit. For the K-quants, the core
searches for the scales: the format fixes the meaning of a block, but not the choice of its numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski import _native
from chaski.errors import FormatError, UnsupportedError
from chaski.formats.quant import BlockFields, Bytes, Floats, PackedBlocks, QuantType, as_float32, row_bytes
from chaski.formats.scale_search import extreme, fit_affine, fit_symmetric, nearest_levels, reciprocal

_LARGEST = {QuantType.F32: float(np.finfo(np.float32).max), QuantType.BF16: 255 * 2.0**120}
_LARGEST_HALF = 65504.0
_ELEMENTS_AT_ONCE = 1 << 16  # a core's cache holds them
_PARTS_OF_A_THREAD = 4  # so that a thread that falls behind leaves some to the others
# Elements that a thread should have: it takes a tenth of a millisecond to start.
_WORTH_A_THREAD = 1 << 20
_SEARCHED_WORTH_A_THREAD = 1 << 16


def quantize(
    array: NDArray[np.floating[Any] | np.uint16], type: QuantType, num_threads: int | None = None
) -> Bytes:
    """Return the bytes of `array` as a tensor of `type`: uint8, one dimension.

    array: numbers; those of uint16 are the bits of BF16.
    num_threads: by default one per core, or fewer for small arrays. The bytes do not depend on it.

    Types: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K; UnsupportedError for others.
    FormatError when the rows are not whole blocks, or a value is infinite, not a number or too large for the
    type.
    """
    if type not in _ENCODERS:
        raise UnsupportedError(f"quantizing to {type.name} is not supported; " + _choices())
    row_bytes(type, array.shape[-1])
    values = array.reshape(-1, type.block_size)
    blocks = np.empty((len(values), type.block_bytes), np.uint8)

    def encode(part: range) -> None:
        for begin in part:
            some = slice(begin, min(begin + part.step, part.stop))
            _ENCODERS[type](as_float32(values[some]), type, blocks[some])

    threads = num_threads or _threads_worth_it(array.size, type)
    parts = _parts(len(values), threads, _ELEMENTS_AT_ONCE // type.block_size)
    if threads < 2:
        for part in parts:
            encode(part)
    else:
        with ThreadPoolExecutor(threads, "chaski-quantize") as pool:
            list(pool.map(encode, parts))
    return blocks.reshape(-1)


def _parts(count: int, threads: int, step: int) -> list[range]:
    """Split `count` blocks between threads: ranges whose steps are the blocks to encode at once."""
    size = max(1, -(-count // (threads * _PARTS_OF_A_THREAD)))
    return [range(begin, min(begin + size, count), step) for begin in range(0, count, size)]


def _threads_worth_it(num_elements: int, type: QuantType) -> int:
    """Threads that quantize that many elements faster than fewer would, one per core at most."""
    worth = _SEARCHED_WORTH_A_THREAD if type in _K_ENCODERS else _WORTH_A_THREAD
    return max(1, min(_num_cores(), num_elements // worth))


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


def _check_range(peak: float, type: QuantType) -> None:
    """Refuse a tensor whose largest magnitude is `peak`. Raises FormatError."""
    if not np.isfinite(peak):
        raise FormatError(f"a tensor with values that are infinite or not a number cannot become {type.name}")
    if peak > _limit(type):
        raise FormatError(f"the value {peak:g} is too large for {type.name}, whose limit is {_limit(type):g}")


def _limit(type: QuantType) -> float:
    """The largest magnitude that a type can hold; that of a scale in half precision for blocks."""
    return _LARGEST.get(type, _LARGEST_HALF)


def _encode_plainly(values: Floats, type: QuantType, out: Bytes) -> None:
    """Encode numbers, or blocks whose scales follow from their extremes."""
    peak = _native.encode_blocks(int(type), values.reshape(-1), _limit(type), out.reshape(-1))
    _check_range(peak, type)


def _encode_by_search(values: Floats, type: QuantType, out: Bytes) -> None:
    """Encode blocks whose scales the native core searches for."""
    _check_range(float(np.abs(values).max(initial=0.0)), type)
    out[:] = _K_ENCODERS[type](values).view(np.uint8).reshape(out.shape)


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


_K_ENCODERS: dict[QuantType, Callable[[Floats], PackedBlocks]] = {
    QuantType.Q4_K: _encode_q4_k,
    QuantType.Q5_K: _encode_q5_k,
    QuantType.Q6_K: _encode_q6_k,
}
_ENCODERS: dict[QuantType, Callable[[Floats, QuantType, Bytes], None]] = {
    QuantType.F32: _encode_plainly,
    QuantType.F16: _encode_plainly,
    QuantType.BF16: _encode_plainly,
    QuantType.Q4_0: _encode_plainly,
    QuantType.Q4_1: _encode_plainly,
    QuantType.Q5_0: _encode_plainly,
    QuantType.Q5_1: _encode_plainly,
    QuantType.Q8_0: _encode_plainly,
    **dict.fromkeys(_K_ENCODERS, _encode_by_search),
}
