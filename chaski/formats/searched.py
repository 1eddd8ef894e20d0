"""Encoders of blocks whose scales are searched for, always or if the importance of columns is known.

Every encoder takes values, (blocks, elements), and the weights of the elements in the error, of the same
shape, or None for its default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from chaski.formats.coarse_encoders import encode_q1_0, encode_q2_0, encode_tq1_0, encode_tq2_0
from chaski.formats.codebook_encoders import CODEBOOK_ENCODERS
from chaski.formats.dequantize import IQ4_VALUES
from chaski.formats.packing import pack
from chaski.formats.quant import Bytes, Floats, PackedBlocks, QuantType
from chaski.formats.scale_search import (
    element_weights,
    encode_lines,
    extreme,
    fit_affine,
    fit_listed,
    fit_symmetric,
    nearest_levels,
    reciprocal,
)

__all__ = ["BY_IMPORTANCE", "SEARCHED", "Encoder"]

Encoder: TypeAlias = Callable[[Floats, Floats | None], PackedBlocks]


def _sums_of_sixteen(weights: Floats) -> Floats:
    """The total weight of each sub-block, added in the order of `sum`, which is slow for rows this short."""
    sums = weights[:, :8] + weights[:, 8:]
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums


def _encode_lines(
    type: QuantType, top: int, top_multiple: int, values: Floats, weights: Floats | None
) -> PackedBlocks:
    """Q2_K, Q4_K and Q5_K: levels 0 to `top` of elements, and 0 to `top_multiple` of scales and minimums."""
    weights = element_weights(values) if weights is None else weights
    return encode_lines(type, values, top, top_multiple, weights)


def _encode_q3_k(values: Floats, weights: Floats | None) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.Q3_K.layout)
    parts = values.reshape(-1, 16)
    weights = element_weights(values) if weights is None else weights
    part_weights = weights.reshape(-1, 16)
    scales = fit_symmetric(parts, -4, part_weights).reshape(-1, 16)
    blocks["d"] = fit_symmetric(scales, -32, _sums_of_sixteen(part_weights).reshape(scales.shape))
    d = blocks["d"].astype(np.float32)[:, None]
    scale_levels = nearest_levels(scales * reciprocal(d), -32, 31)
    levels = nearest_levels(parts * reciprocal((d * scale_levels).reshape(-1, 1)), -4, 3) + 4
    fields = levels.astype(np.uint8).reshape(-1, 256)
    packed_scales = (scale_levels + 32).astype(np.uint8)
    blocks["scales"] = np.hstack([pack(packed_scales & 15, 4, 8), pack(packed_scales >> 4, 2, 4)])
    blocks["qs"] = pack(fields & 3, 2, 32)
    blocks["hmask"] = pack(fields >> 2, 1, 32)
    return blocks


def _encode_q6_k(values: Floats, weights: Floats | None) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.Q6_K.layout)
    parts = values.reshape(-1, 16)
    part_weights = None if weights is None else weights.reshape(-1, 16)
    scales = fit_symmetric(parts, -32, part_weights).reshape(-1, 16)
    blocks["d"] = extreme(scales) / np.float32(-128)
    d = blocks["d"].astype(np.float32)[:, None]
    scale_levels = nearest_levels(scales * reciprocal(d), -128, 127)
    blocks["scales"] = scale_levels
    levels = nearest_levels(parts * reciprocal((d * scale_levels).reshape(-1, 1)), -32, 31) + 32
    fields = levels.astype(np.uint8).reshape(-1, 256)
    blocks["ql"] = pack(fields & 15, 4, 64)
    blocks["qh"] = pack(fields >> 4, 2, 32)
    return blocks


# The number of the value nearest to x / 2 - 128: middles of two values are multiples of a half.
_NEAREST_IQ4 = np.searchsorted(IQ4_VALUES[1:] + IQ4_VALUES[:-1], np.arange(-256, 256), "right").astype(
    np.uint8
)


def _listed_levels(values: Floats) -> Bytes:
    """The numbers of the nearest values of IQ4."""
    halves = np.clip(np.floor(values * np.float32(2)), -256, 255).astype(np.intp) + 256
    numbers: Bytes = _NEAREST_IQ4[halves]
    return numbers


def _encode_iq4_nl(values: Floats, weights: Floats | None) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.IQ4_NL.layout)
    weights = element_weights(values) if weights is None else weights
    blocks["d"] = fit_listed(values, IQ4_VALUES, weights)
    d = blocks["d"].astype(np.float32)[:, None]
    blocks["qs"] = pack(_listed_levels(values * reciprocal(d)), 4, 16)
    return blocks


def _encode_iq4_xs(values: Floats, weights: Floats | None) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.IQ4_XS.layout)
    parts = values.reshape(-1, 32)
    weights = element_weights(values) if weights is None else weights
    scales = fit_listed(parts, IQ4_VALUES, weights.reshape(-1, 32)).reshape(-1, 8)
    blocks["d"] = extreme(scales) / np.float32(-32)
    d = blocks["d"].astype(np.float32)[:, None]
    scale_levels = nearest_levels(scales * reciprocal(d), -32, 31)
    packed_scales = (scale_levels + 32).astype(np.uint8)
    blocks["scales_l"] = pack(packed_scales & 15, 4, 1)
    blocks["scales_h"] = pack(packed_scales >> 4, 2, 1)
    levels = _listed_levels(parts * reciprocal((d * scale_levels).reshape(-1, 1)))
    blocks["qs"] = pack(levels.reshape(-1, 256), 4, 16)
    return blocks


def _encode_symmetric(type: QuantType, lowest: int, values: Floats, weights: Floats | None) -> PackedBlocks:
    """Q4_0 and Q5_0."""
    blocks = np.empty(len(values), type.layout)
    blocks["d"] = fit_symmetric(values, lowest, weights)
    d = blocks["d"].astype(np.float32)[:, None]
    _put_levels(blocks, nearest_levels(values * reciprocal(d), lowest, -lowest - 1) - lowest)
    return blocks


def _encode_line(type: QuantType, top: int, values: Floats, weights: Floats | None) -> PackedBlocks:
    """Q4_1 and Q5_1."""
    blocks = np.empty(len(values), type.layout)
    scales, minimums = fit_affine(values, top, weights)
    blocks["d"], blocks["m"] = scales, -minimums
    d, low = (blocks[field].astype(np.float32)[:, None] for field in ("d", "m"))
    _put_levels(blocks, nearest_levels((values - low) * reciprocal(d), 0, top))
    return blocks


def _put_levels(blocks: PackedBlocks, levels: Floats) -> None:
    """Fill in the levels of Q4_0, Q4_1, Q5_0 or Q5_1."""
    fields = levels.astype(np.uint8)
    blocks["qs"] = pack(fields & 15, 4, 16)
    if "qh" in (blocks.dtype.names or ()):
        blocks["qh"] = pack(fields >> 4, 1, 1)


def _q4_0(values: Floats, weights: Floats | None) -> PackedBlocks:
    return _encode_symmetric(QuantType.Q4_0, -8, values, weights)


def _q5_0(values: Floats, weights: Floats | None) -> PackedBlocks:
    return _encode_symmetric(QuantType.Q5_0, -16, values, weights)


def _q4_1(values: Floats, weights: Floats | None) -> PackedBlocks:
    return _encode_line(QuantType.Q4_1, 15, values, weights)


def _q5_1(values: Floats, weights: Floats | None) -> PackedBlocks:
    return _encode_line(QuantType.Q5_1, 31, values, weights)


SEARCHED: dict[QuantType, Encoder] = {
    QuantType.Q2_K: partial(_encode_lines, QuantType.Q2_K, 3, 15),
    QuantType.Q3_K: _encode_q3_k,
    QuantType.Q4_K: partial(_encode_lines, QuantType.Q4_K, 15, 63),
    QuantType.Q5_K: partial(_encode_lines, QuantType.Q5_K, 31, 63),
    QuantType.Q6_K: _encode_q6_k,
    QuantType.IQ4_NL: _encode_iq4_nl,
    QuantType.IQ4_XS: _encode_iq4_xs,
    **CODEBOOK_ENCODERS,
    QuantType.Q2_0: encode_q2_0,
    QuantType.TQ2_0: encode_tq2_0,
    QuantType.TQ1_0: encode_tq1_0,
}
"""The types whose scales are always searched for."""
BY_IMPORTANCE: dict[QuantType, Encoder] = SEARCHED | {
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.Q1_0: encode_q1_0,
}
"""The types whose scales are searched for if the importance of columns is known."""
