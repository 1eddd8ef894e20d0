"""GPTQ: integers of a few bits in words of 32, with a scale and a zero point for a group of inputs.

A weight (out, in) has `qweight` (in * bits / 32, out), `qzeros` (groups, out * bits / 32), `scales`
(groups, out), and mostly `g_idx`, the group of each input. In the first version of the format, a stored zero
point is one less than the real one, and 0 is stored as the largest integer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows, indices
from chaski.convert.quantized.elements import block_of, numbers, unpacked, words
from chaski.convert.quantized.module import Decoded, Stored, check_shape, layout
from chaski.errors import ModelError
from chaski.formats.safetensors import SafeTensor

__all__ = ["decode_gptq", "gptq_weights"]

_PACKED = ".qweight"
_BITS = (2, 3, 4, 8)


def decode_gptq(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights that GPTQ packed. Raises UnsupportedError, and ModelError for unfitting tensors."""
    version = layout(stored.settings, "checkpoint_format", ("gptq", "gptq_v2"))
    return gptq_weights(stored, zero_offset=1 if version == "gptq" else 0)


def gptq_weights(stored: Stored, zero_offset: int) -> Iterator[Decoded]:
    """Yield the weights in GPTQ's order. zero_offset: a number added to stored zero points."""
    for main, packed in stored.ending(_PACKED):
        base = main.removesuffix("qweight")
        zeros, scales = (stored.require(f"{base}{part}", main) for part in ("qzeros", "scales"))
        bits, groups = _columns(stored, base, packed, len(scales.data))
        num_columns, num_rows = len(groups), packed.shape[1]
        check_shape(zeros, (len(scales.data), -(-num_rows * bits // 32)))
        check_shape(scales, (len(scales.data), num_rows))
        decode = _gptq_rows(packed, zeros, scales, groups, bits, zero_offset)
        yield stored.decoded(f"{base}weight", (num_rows, num_columns), decode, *stored.parts_of_module(base))


def _columns(stored: Stored, base: str, packed: SafeTensor, num_groups: int) -> tuple[int, Rows]:
    """Return the bits of an element, and the group of each column."""
    index = stored.get(f"{base}g_idx")
    bits = stored.settings.get("bits", int)
    if index is None:
        num_columns = packed.shape[0] * 32 // bits if bits > 0 else 0
        size = stored.settings.get("group_size", int, -1)
        groups = block_of(num_columns, size if size > 0 else max(num_columns, 1))
    else:
        groups = index.data.reshape(-1)
        bits = packed.shape[0] * 32 // max(len(groups), 1)  # some modules have others than the rest
    fits = (
        (index is None or index.is_integer) and bits in _BITS and packed.shape[0] * 32 == len(groups) * bits
    )
    if len(packed.shape) != 2 or not fits or not 0 <= groups.min() <= groups.max() < num_groups:
        raise ModelError(
            f"{packed.path}: tensor {packed.name!r} {packed.shape} does not hold {len(groups)} inputs of "
            f"2, 3, 4 or 8 bits in {num_groups} groups"
        )
    return bits, groups


def _gptq_rows(
    packed: SafeTensor, zeros: SafeTensor, scales: SafeTensor, groups: Rows, bits: int, offset: int
) -> DecodeRows:
    codes, packed_zeros, positions = words(packed), words(zeros), indices(len(groups))

    def decode(rows: Rows) -> F32:
        values = unpacked(np.ascontiguousarray(codes[:, rows].T), positions, bits)
        values -= ((unpacked(packed_zeros, rows, bits) + offset) & (1 << bits) - 1).T[:, groups]
        return values.astype(np.float32) * numbers(scales, scales.data[:, rows]).T[:, groups]

    return decode
