"""Random weights written directly as quantized blocks, which is faster than any quantizer.

Random bytes fill whole blocks. Then only the float scales of a block are set, so that weights of every type
have about the same spread. The layouts are those of the `gguf` package. Such weights serve to measure speed
and memory; their output text is meaningless.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chaski.formats.dequantize import dequantize
from chaski.formats.quant import QuantType, row_bytes

__all__ = ["WEIGHT_SPREAD", "random_rows"]

# With this spread a matrix over a normalized row of 2048 keeps the size of the row, so no layer overflows.
WEIGHT_SPREAD = 0.02

_T = QuantType
_SAMPLE_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class _Scales:
    """The place of a block's float16 scale, and its float16 offset as a multiple of the scale.

    The offset is chosen so that the mean of uniformly random codes is near zero.
    """

    scale_at: int
    offset_at: int | None = None
    offset: float = 0.0


_SCALES = {
    _T.Q4_0: _Scales(0),
    _T.Q4_1: _Scales(0, 2, -7.5),
    _T.Q5_0: _Scales(0),
    _T.Q5_1: _Scales(0, 2, -15.5),
    _T.Q8_0: _Scales(0),
    _T.Q2_K: _Scales(80, 82, 1.5),
    _T.Q3_K: _Scales(108),
    _T.Q4_K: _Scales(0, 2, 7.5),
    _T.Q5_K: _Scales(0, 2, 15.5),
    _T.Q6_K: _Scales(208),
    _T.IQ4_NL: _Scales(0),
    _T.IQ4_XS: _Scales(0),
    _T.Q1_0: _Scales(0),
    _T.Q2_0: _Scales(0),
    _T.TQ1_0: _Scales(52),
    _T.TQ2_0: _Scales(64),
    _T.IQ1_S: _Scales(0),
    _T.IQ2_XXS: _Scales(0),
    _T.IQ2_XS: _Scales(0),
    _T.IQ2_S: _Scales(0),
    _T.IQ3_XXS: _Scales(0),
    _T.IQ3_S: _Scales(0),
}

_NVFP4_SCALE = 4  # a subnormal number; it makes the spread nearly WEIGHT_SPREAD

# Plain floats: the bits that stay random (sign and mantissa), and the fixed exponent of 2 ** -6.
_FLOATS: dict[QuantType, tuple[np.uint32, np.uint32] | tuple[np.uint16, np.uint16]] = {
    _T.F32: (np.uint32(0x807FFFFF), np.uint32((127 - 6) << 23)),
    _T.F16: (np.uint16(0x83FF), np.uint16((15 - 6) << 10)),
    _T.BF16: (np.uint16(0x807F), np.uint16((127 - 6) << 7)),
}


def random_rows(kind: QuantType, rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return random weights of `kind` with a spread of about WEIGHT_SPREAD: uint8 (rows, row_bytes)."""
    size = row_bytes(kind, columns)
    data = np.frombuffer(rng.bytes(rows * size), dtype=np.uint8).copy()
    if kind in _FLOATS:
        _set_exponents(data, kind)
    elif kind is _T.MXFP4:
        _blocks(data, kind)[:, 0] = _mxfp4_exponent()
    elif kind is _T.NVFP4:
        _blocks(data, kind)[:, :4] = _NVFP4_SCALE
    else:
        _set_scales(_blocks(data, kind), kind, _spread_scale(kind))
    return data.reshape(rows, size)


def _blocks(data: NDArray[np.uint8], kind: QuantType) -> NDArray[np.uint8]:
    return data.reshape(-1, kind.block_bytes)


def _set_exponents(data: NDArray[np.uint8], kind: QuantType) -> None:
    keep, exponent = _FLOATS[kind]
    bits = data.view(keep.dtype)
    bits &= keep
    bits |= exponent


def _set_scales(blocks: NDArray[np.uint8], kind: QuantType, scale: float) -> None:
    if kind is _T.IQ1_M:  # a quarter of it in each of four words
        words = blocks[:, -8:].view(np.uint16)
        quarters = np.float16(scale).view(np.uint16) >> np.arange(0, 16, 4, dtype=np.uint16)
        words[:] = words & 0x0FFF | quarters << 12
        return
    where = _SCALES[kind]
    blocks[:, where.scale_at : where.scale_at + 2] = np.array([scale], np.float16).view(np.uint8)
    if where.offset_at is not None:
        offset = np.array([scale * where.offset], np.float16)
        blocks[:, where.offset_at : where.offset_at + 2] = offset.view(np.uint8)


def _spread_scale(kind: QuantType) -> float:
    sample = _blocks(_sample(kind), kind)
    _set_scales(sample, kind, 1.0)
    return WEIGHT_SPREAD / float(np.std(_values(sample, kind)))


def _mxfp4_exponent() -> int:
    """Return the power-of-two scale of MXFP4 (E8M0, bias 127) nearest to the wanted spread."""
    sample = _blocks(_sample(_T.MXFP4), _T.MXFP4)
    sample[:, 0] = 127
    return 127 + round(math.log2(WEIGHT_SPREAD / float(np.std(_values(sample, _T.MXFP4)))))


def _values(sample: NDArray[np.uint8], kind: QuantType) -> NDArray[np.float32]:
    return dequantize(sample, kind, (_SAMPLE_BLOCKS, kind.block_size))


def _sample(kind: QuantType) -> NDArray[np.uint8]:
    size = _SAMPLE_BLOCKS * kind.block_bytes
    return np.frombuffer(np.random.default_rng(0).bytes(size), np.uint8).copy()
