"""AWQ: integers of four bits in words of 32, with a scale and a zero point for a group of inputs.

A weight (out, in) has `qweight`, `qzeros` and `scales`, in one of two layouts:

* `gemm`: (in, out / 8), (groups, out / 8) and (groups, out). A word contains outputs 0, 2, 4, 6, 1, 3, 5, 7.
* `gemv`: (out, in / 8), (out, groups / 8) and (out, groups), padded to whole words.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows, indices
from chaski.convert.quantized.elements import at, block_of, numbers, unpacked, words
from chaski.convert.quantized.module import Decoded, Stored, check_shape, layout
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.safetensors import SafeTensor

__all__ = ["decode_awq", "gemm_weights"]

_BITS = 4
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""The place of each of eight outputs in its word, in the layout `gemm`."""


def decode_awq(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights that AWQ packed. Raises UnsupportedError, and ModelError for unfitting tensors."""
    found = layout(stored.settings, "version", ("gemm", "exllama", "ipex", "gemv"))
    return _gemv_weights(stored) if found == "gemv" else gemm_weights(stored)


def gemm_weights(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights in the layout `gemm`."""
    for base, packed, zeros, scales in _modules(stored):
        num_columns, num_rows, num_groups = packed.shape[0], packed.shape[1] * 8, len(scales.data)
        if num_groups == 0 or num_columns % num_groups:
            raise ModelError(
                f"{packed.path}: tensor {packed.name!r} {packed.shape} does not hold {num_groups} groups"
            )
        check_shape(zeros, (num_groups, packed.shape[1]))
        check_shape(scales, (num_groups, num_rows))
        decode, shape = _gemm_rows(packed, zeros, scales), (num_rows, num_columns)
        yield stored.decoded(f"{base}weight", shape, decode, *stored.parts_of_module(base))


def _modules(stored: Stored) -> Iterator[tuple[str, SafeTensor, SafeTensor, SafeTensor]]:
    """Yield the name of each module with its codes, zero points and scales."""
    bits = stored.settings.get("bits", int, stored.settings.get("w_bit", int, _BITS))
    if bits != _BITS:
        raise UnsupportedError(f"{stored.settings.path}: AWQ with {bits} bits cannot be decoded, only with 4")
    for main, packed in stored.ending(".qweight"):
        base = main.removesuffix("qweight")
        if len(packed.shape) != 2:
            raise ModelError(f"{packed.path}: tensor {packed.name!r} {packed.shape} is not a matrix")
        yield base, packed, stored.require(f"{base}qzeros", main), stored.require(f"{base}scales", main)


def _gemm_rows(packed: SafeTensor, zeros: SafeTensor, scales: SafeTensor) -> DecodeRows:
    codes, packed_zeros = words(packed), words(zeros)
    groups = block_of(len(codes), len(codes) // len(packed_zeros))

    def decode(rows: Rows) -> F32:
        places = rows // 8 * 8 + _PLACES[rows % 8]
        values = unpacked(codes, places, _BITS).T
        values = values - unpacked(packed_zeros, places, _BITS).T[:, groups]
        return values.astype(np.float32) * numbers(scales, scales.data[:, rows]).T[:, groups]

    return decode


def _gemv_weights(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights in the layout `gemv`."""
    settings = stored.settings
    for base, packed, zeros, scales in _modules(stored):
        num_rows, num_columns = packed.shape[0], packed.shape[1] * 8
        size = settings.get("group_size", int, settings.get("q_group_size", int, -1))
        groups = block_of(num_columns, size if size > 0 else max(num_columns, 1))
        check_shape(scales, (num_rows, 8 * zeros.shape[-1]))
        check_shape(zeros, (num_rows, zeros.shape[-1]))
        if not num_columns or groups[-1] >= scales.shape[1]:
            raise ModelError(f"{scales.path}: tensor {scales.name!r} {scales.shape} has too few groups")
        decode, shape = _gemv_rows(packed, zeros, scales, groups), (num_rows, num_columns)
        yield stored.decoded(f"{base}weight", shape, decode, *stored.parts_of_module(base))


def _gemv_rows(packed: SafeTensor, zeros: SafeTensor, scales: SafeTensor, groups: Rows) -> DecodeRows:
    codes, packed_zeros = words(packed), words(zeros)
    positions, places = indices(codes.shape[1] * 8), indices(scales.shape[1])

    def decode(rows: Rows) -> F32:
        of_groups = unpacked(at(packed_zeros, rows), places, _BITS)
        values = unpacked(at(codes, rows), positions, _BITS) - of_groups[:, groups]
        return values.astype(np.float32) * numbers(scales, at(scales.data, rows))[:, groups]

    return decode
