"""Encoders of the types with codebooks, IQ1 to IQ3.

A sub-block has a scale of few bits, and the levels of each 8 or 4 elements are an entry of the type's
codebook. The native core searches for the scales and for the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski import _native
from chaski.formats.packing import pack
from chaski.formats.quant import Bytes, Floats, PackedBlocks, QuantType
from chaski.formats.scale_search import element_weights, reciprocal

__all__ = ["CODEBOOK_ENCODERS"]

_STEPS = np.array([0, -1, 1], np.float32)[:, None, None]
_DELTAS = (QuantType.IQ1_S, QuantType.IQ1_M)  # they have twice the entries to compare, so fewer scales


Words: TypeAlias = NDArray[np.uint32]


class _Parts(Struct, frozen=True):
    """The contents of blocks: levels of scales, entries, and signs (IQ1: signs of deltas)."""

    scales: Bytes
    entries: NDArray[np.uint16]
    signs: Bytes


_Pack: TypeAlias = Callable[[PackedBlocks, _Parts], None]


def _encode(
    type: QuantType, size: int, top: int, unit: float, put: _Pack, values: Floats, weights: Floats | None
) -> PackedBlocks:
    """Encode sub-blocks of `size` elements, whose scales are d · unit · (2 level + 1), with level <= top."""
    weights = element_weights(values) if weights is None else np.ascontiguousarray(weights)
    x, w = values.reshape(-1, size), weights.reshape(-1, size)
    scales = _native.fit_codebook(int(type), x, w).reshape(len(values), -1)
    d = scales.max(axis=1, keepdims=True) / np.float32(unit * (2 * top + 1))
    half_levels: Floats = scales * reciprocal(d * np.float32(unit)) - np.float32(1)
    levels = _levels_around(type, half_levels * np.float32(0.5), top)
    stored: Floats = d * np.float32(unit) * (2 * levels + 1)
    groups = size // 4 if type in (QuantType.IQ3_XXS, QuantType.IQ3_S) else size // 8
    choices, sums = np.empty(len(x), np.uint8), np.empty((len(x), 2), np.float32)
    entries, signs = np.empty((len(x), groups), np.uint16), np.empty((len(x), size // 8), np.uint8)
    tried = stored.reshape(len(stored), -1)
    _native.choose_entries(int(type), x, w, tried, choices, entries, signs, sums)
    count = len(values)
    levels = np.take_along_axis(levels, choices.reshape(1, count, -1), axis=0)[0]
    blocks = np.zeros(count, type.layout)
    parts = _Parts(levels.astype(np.uint8), entries.reshape(count, -1), signs.reshape(count, -1))
    put(blocks, parts)
    _put_scale(blocks, _best_units(unit * (2 * levels + 1), sums.reshape(count, -1, 2)))
    return blocks


def _levels_around(type: QuantType, exact: Floats, top: int) -> Floats:
    """Return the nearest level of each scale and those around it, (tries, blocks, sub-blocks)."""
    levels: Floats = np.clip(np.rint(exact) + (_STEPS[:1] if type in _DELTAS else _STEPS), 0, top)
    return levels


def _best_units(scales: Floats, sums: Floats) -> Floats:
    """Return the factor of each block's scales with the smallest error, from the sums of its sub-blocks."""
    products = (scales * sums[:, :, 1]).sum(axis=1)
    factors: Floats = products * reciprocal((scales * scales * sums[:, :, 0]).sum(axis=1))
    return factors


def _put_scale(blocks: PackedBlocks, d: Floats) -> None:
    """Store the scales of blocks; those of IQ1_M are spread over the words of its sub-blocks' scales."""
    if "d" in (blocks.dtype.names or ()):
        blocks["d"] = d
        return
    halves = d.astype("<f2").view("<u2")[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15
    blocks["scales"] = blocks["scales"] & 0xFFF | halves << 12


def _four_sevens(sevens: Bytes, top: Bytes) -> Words:
    """Put four signs of seven bits and four other bits into each word."""
    fields = (sevens & 127).reshape(len(sevens), -1, 4).astype(np.uint32)
    words: Words = np.bitwise_or.reduce(fields << np.arange(0, 28, 7, dtype=np.uint32), axis=2)
    words |= top.astype(np.uint32) << np.uint32(28)
    return words


def _put_iq2_xxs(blocks: PackedBlocks, parts: _Parts) -> None:
    low = parts.entries.astype(np.uint8).reshape(len(blocks), 8, 4)
    words = _four_sevens(parts.signs, parts.scales).astype("<u4")
    blocks["qs"] = np.concatenate([low, words.view(np.uint8).reshape(len(blocks), 8, 4)], axis=2).reshape(
        len(blocks), -1
    )


def _put_iq2_xs(blocks: PackedBlocks, parts: _Parts) -> None:
    blocks["qs"] = parts.entries | (parts.signs & 127).astype(np.uint16) << 9
    blocks["scales"] = pack(parts.scales, 4, 1)


def _put_iq2_s(blocks: PackedBlocks, parts: _Parts) -> None:
    blocks["qs"] = parts.entries & 255
    blocks["qh"] = pack((parts.entries >> 8).astype(np.uint8), 2, 1)
    blocks["signs"] = parts.signs
    blocks["scales"] = pack(parts.scales, 4, 1)


def _put_iq3_xxs(blocks: PackedBlocks, parts: _Parts) -> None:
    blocks["qs"] = parts.entries
    blocks["signs"] = _four_sevens(parts.signs, parts.scales)


def _put_iq3_s(blocks: PackedBlocks, parts: _Parts) -> None:
    blocks["qs"] = parts.entries & 255
    blocks["qh"] = pack((parts.entries >> 8).astype(np.uint8), 1, 1)
    blocks["signs"] = parts.signs
    blocks["scales"] = pack(parts.scales, 4, 1)


def _put_iq1_s(blocks: PackedBlocks, parts: _Parts) -> None:
    blocks["qs"] = parts.entries & 255
    high = (parts.entries >> 8).reshape(len(blocks), 8, 4) << np.arange(0, 12, 3, dtype=np.uint16)
    is_negative = parts.signs.reshape(len(blocks), 8, 4)[:, :, 0].astype(np.uint16)
    blocks["qh"] = (
        np.bitwise_or.reduce(high, axis=2) | parts.scales.astype(np.uint16) << 12 | is_negative << 15
    )


def _put_iq1_m(blocks: PackedBlocks, parts: _Parts) -> None:
    blocks["qs"] = parts.entries & 255
    blocks["qh"] = pack((parts.entries >> 8).astype(np.uint8) | parts.signs << 3, 4, 1)
    levels = parts.scales.astype(np.uint16).reshape(len(blocks), 4, 4) << np.arange(0, 12, 3, dtype=np.uint16)
    blocks["scales"] = np.bitwise_or.reduce(levels, axis=2)


def _codebook_encoder(
    type: QuantType, size: int, top: int, unit: float, put: _Pack
) -> Callable[[Floats, Floats | None], PackedBlocks]:
    return partial(_encode, type, size, top, unit, put)


CODEBOOK_ENCODERS: dict[QuantType, Callable[[Floats, Floats | None], PackedBlocks]] = {
    QuantType.IQ3_S: _codebook_encoder(QuantType.IQ3_S, 32, 15, 1.0, _put_iq3_s),
    QuantType.IQ3_XXS: _codebook_encoder(QuantType.IQ3_XXS, 32, 15, 0.25, _put_iq3_xxs),
    QuantType.IQ2_S: _codebook_encoder(QuantType.IQ2_S, 16, 15, 0.125, _put_iq2_s),
    QuantType.IQ2_XS: _codebook_encoder(QuantType.IQ2_XS, 16, 15, 0.125, _put_iq2_xs),
    QuantType.IQ2_XXS: _codebook_encoder(QuantType.IQ2_XXS, 32, 15, 0.125, _put_iq2_xxs),
    QuantType.IQ1_M: _codebook_encoder(QuantType.IQ1_M, 16, 7, 1.0, _put_iq1_m),
    QuantType.IQ1_S: _codebook_encoder(QuantType.IQ1_S, 32, 7, 1.0, _put_iq1_s),
}
