"""Encoders of the types with two to four levels and no codebook: Q1_0, Q2_0, TQ1_0 and TQ2_0.

ggml takes the largest magnitude of a block as the scale of Q2_0, TQ1_0 and TQ2_0. This suits models that were
trained with three values; of other weights, it makes nearly all zero. Here the scale with the smallest error
is searched for. It is ggml's for weights of three values.
"""

from __future__ import annotations

import numpy as np

from chaski.formats.packing import pack
from chaski.formats.quant import Bytes, Floats, PackedBlocks, QuantType
from chaski.formats.scale_search import fit_from_minus_one, nearest_levels, reciprocal

__all__ = ["encode_q1_0", "encode_q2_0", "encode_tq1_0", "encode_tq2_0"]


def encode_q1_0(values: Floats, weights: Floats | None) -> PackedBlocks:
    """Encode signs and the weighted mean magnitude, which is the best scale for them."""
    blocks = np.empty(len(values), QuantType.Q1_0.layout)
    blocks["d"] = np.average(np.abs(values), axis=1, weights=weights)
    blocks["qs"] = pack((values >= 0).astype(np.uint8), 1, 1)
    return blocks


def encode_q2_0(values: Floats, weights: Floats | None) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.Q2_0.layout)
    blocks["d"], codes = _fit(values, 2, weights)
    blocks["qs"] = pack(codes, 2, 1)
    return blocks


def encode_tq2_0(values: Floats, weights: Floats | None) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.TQ2_0.layout)
    blocks["d"], codes = _fit(values, 1, weights)
    blocks["qs"] = pack(codes, 2, 32)
    return blocks


def encode_tq1_0(values: Floats, weights: Floats | None) -> PackedBlocks:
    blocks = np.empty(len(values), QuantType.TQ1_0.layout)
    blocks["d"], codes = _fit(values, 1, weights)
    blocks["qs"] = np.hstack([_in_base_3(codes[:, :160], 32), _in_base_3(codes[:, 160:240], 16)])
    blocks["qh"] = _in_base_3(codes[:, 240:], 4)
    return blocks


def _fit(values: Floats, high: int, weights: Floats | None) -> tuple[Floats, Bytes]:
    """Return the scale of each block, (blocks,), and the levels -1 to `high` as codes from 0 on.

    The scale is negative only if the level 2 is used.
    """
    weights = np.ones_like(values) if weights is None else weights
    d = fit_from_minus_one(values, high, weights).astype(np.float16).astype(np.float32)[:, None]
    levels = nearest_levels(values * reciprocal(d), -1, high)
    is_ternary = levels.max(axis=1, keepdims=True) < 2
    flipped: Floats = np.where(is_ternary & (d < 0), np.float32(-1), np.float32(1))
    codes: Bytes = (levels * flipped + 1).astype(np.uint8)
    return (d * flipped)[:, 0], codes


def _in_base_3(digits: Bytes, count: int) -> Bytes:
    """Put up to five digits into each of `count` bytes, as fractions of 256."""
    columns = digits.reshape(len(digits), -1, count).astype(np.uint32)
    powers = 3 ** np.arange(4, 4 - columns.shape[1], -1, dtype=np.uint32)
    numbers = (columns * powers[:, None]).sum(axis=1)
    fractions: Bytes = ((numbers * 256 + 242) // 243).astype(np.uint8)
    return fractions
