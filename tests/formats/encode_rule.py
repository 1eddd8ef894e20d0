"""Plain numbers and simple blocks in NumPy, by ggml's rule as in `native/kernels/encode_blocks.cpp`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chaski.formats.dequantize import FP4_VALUES
from chaski.formats.packing import pack
from chaski.formats.quant import Bytes, Floats, QuantType


def encode(x: Floats, type: QuantType) -> bytes:
    """Return the bytes of x, whole blocks."""
    if type.block_size > 1:
        x = x.reshape(-1, type.block_size)
    match type:
        case QuantType.F32:
            return x.tobytes()
        case QuantType.F16:
            return x.astype(np.float16).tobytes()
        case QuantType.BF16:
            return bf16(x).tobytes()
        case QuantType.Q8_0:
            return q8_0(x).tobytes()
        case QuantType.Q4_0 | QuantType.Q5_0:
            return symmetric(x, type, 8 if type is QuantType.Q4_0 else 16).tobytes()
        case QuantType.Q4_1 | QuantType.Q5_1:
            return affine(x, type, 15 if type is QuantType.Q4_1 else 31).tobytes()
        case QuantType.Q1_0:
            return q1_0(x).tobytes()
        case QuantType.NVFP4:
            return nvfp4(x).tobytes()
    raise ValueError(type)


def q1_0(x: Floats) -> NDArray[np.void]:
    """Encode signs, and the mean magnitude, added up in the order of elements."""
    blocks = np.empty(len(x), QuantType.Q1_0.layout)
    blocks["d"] = np.add.accumulate(np.abs(x), axis=1, dtype=np.float32)[:, -1] / np.float32(x.shape[1])
    blocks["qs"] = pack((x >= 0).astype(np.uint8), 1, 1)
    return blocks


def nvfp4(x: Floats) -> NDArray[np.void]:
    """Encode the nearest values of 4 bits, the smaller of two. The scale is a sixth of the peak, in E4M3."""
    blocks = np.zeros(len(x), QuantType.NVFP4.layout)
    parts = x.reshape(-1, 16)
    scales = e4m3(np.abs(parts).max(axis=1) / np.float32(6))
    magnitudes = np.ldexp(1 + (scales & 7) / np.float32(8), (scales >> 3).astype(int) - 8)
    halves = np.where(scales < 8, scales * np.float32(2**-10), magnitudes).astype(np.float32)
    distances = np.abs(FP4_VALUES * halves[:, None, None] - parts[:, :, None])
    blocks["d"] = scales.reshape(-1, 4)
    blocks["qs"] = pack(distances.argmin(axis=2).astype(np.uint8).reshape(x.shape), 4, 8)
    return blocks


def e4m3(x: Floats) -> NDArray[np.uint8]:
    """Round to three bits after the first one, from half upwards, and 256 and more to 448."""
    small = np.minimum(np.trunc(x * np.float32(512) + np.float32(0.5)), 7)
    bits = x.view(np.uint32)
    rounded = ((bits >> 20) + (bits >> 19 & 1)).astype(np.int64) - 120 * 8
    return np.where(bits >> 23 <= 120, small, np.where(rounded < 120, rounded, 126)).astype(np.uint8)


def bf16(x: Floats) -> NDArray[np.uint16]:
    """Round to nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def q8_0(x: Floats) -> NDArray[np.void]:
    """Encode so that the largest magnitude becomes level 127; halves round away from zero."""
    blocks = np.empty(len(x), QuantType.Q8_0.layout)
    d = np.abs(x).max(axis=1) / np.float32(127)
    scaled = x * inverse(d)
    whole = np.trunc(scaled)
    blocks["d"] = d
    blocks["qs"] = whole + np.copysign(np.abs(scaled - whole) >= 0.5, scaled)
    return blocks


def symmetric(x: Floats, type: QuantType, lowest: int) -> NDArray[np.void]:
    """Encode so that the first value of largest magnitude becomes level -`lowest`, whatever its sign."""
    blocks = np.empty(len(x), type.layout)
    place = np.abs(x).argmax(axis=1, keepdims=True)
    extreme = np.take_along_axis(x, place, axis=1)[:, 0]
    extreme[extreme == 0] = 0  # the sign of a zero does not count
    d = extreme / np.float32(-lowest)
    blocks["d"] = d
    put_levels(blocks, x * inverse(d) + np.float32(lowest + 0.5), 2 * lowest - 1)
    return blocks


def affine(x: Floats, type: QuantType, top: int) -> NDArray[np.void]:
    """Encode so that the smallest value (the first of two zeros) becomes level 0, the largest level `top`."""
    blocks = np.empty(len(x), type.layout)
    low = np.take_along_axis(x, x.argmin(axis=1, keepdims=True), axis=1)
    d = (x.max(axis=1) - low[:, 0] + np.float32(0)) / np.float32(top)
    blocks["d"], blocks["m"] = d, low[:, 0]
    put_levels(blocks, (x - low) * inverse(d) + np.float32(0.5), top)
    return blocks


def inverse(d: Floats) -> Floats:
    """Return 1 / d as a column, with 0 if that is infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        found = np.float32(1) / d
    return np.where(np.isfinite(found), found, np.float32(0))[:, None]


def put_levels(blocks: NDArray[np.void], values: Floats, top: int) -> None:
    levels: Bytes = np.minimum(np.trunc(values), top).astype(np.uint8)
    blocks["qs"] = pack(levels & 15, 4, 16)
    if top > 15:
        blocks["qh"] = pack(levels >> 4, 1, 1)
