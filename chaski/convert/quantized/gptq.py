"""GPTQ and AWQ: integers of a few bits in words of 32, with a scale and a zero point for a group of inputs.

Both store `qweight`, `qzeros`, `scales` (groups, out) for a weight (out, in):

* GPTQ packs the inputs of an output: `qweight` (in * bits / 32, out). `g_idx` contains the group of each
  input. In its first version a stored zero point is one less than the real one, and 0 is stored as the
  largest integer.
* AWQ packs the outputs of an input: `qweight` (in, out / 8), with elements 0, 2, 4, 6, 1, 3, 5, 7 in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chaski.convert.config import Config
from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows, indices
from chaski.convert.quantized.elements import block_of, numbers, unpacked, words
from chaski.convert.quantized.module import Decoded, Stored
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.safetensors import SafeTensor

__all__ = ["awq_weights", "decode_awq", "decode_gptq", "gptq_weights"]

_PACKED = ".qweight"
_PARTS = ("qweight", "qzeros", "scales", "g_idx", "bias")
_GPTQ_BITS = (2, 3, 4, 8)
_AWQ_BITS = 4
_AWQ_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""The place of each of eight outputs in its word."""


def decode_gptq(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights that GPTQ packed. Raises UnsupportedError, and ModelError for unfitting tensors."""
    version = _layout(stored.settings, "checkpoint_format", ("gptq", "gptq_v2"))
    return gptq_weights(stored, zero_offset=1 if version == "gptq" else 0)


def decode_awq(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights that AWQ packed. Raises UnsupportedError, and ModelError for unfitting tensors."""
    _layout(stored.settings, "version", ("gemm", "exllama", "ipex"))
    return awq_weights(stored)


def _layout(settings: Config, key: str, known: tuple[str, ...]) -> str:
    """Return how tensors are laid out, the first of `known` by default."""
    found = settings.get(key, str, settings.get("format", str, known[0])).lower()
    if found not in known:
        raise UnsupportedError(
            f"{settings.path}: {key!r} of the quantization is {found!r:.80}; known are {', '.join(known)}"
        )
    return found


def gptq_weights(stored: Stored, zero_offset: int) -> Iterator[Decoded]:
    """Yield the weights in GPTQ's order. zero_offset: a number added to stored zero points."""
    for main, packed in stored.ending(_PACKED):
        base = main.removesuffix("qweight")
        zeros, scales = (stored.require(f"{base}{part}", main) for part in ("qzeros", "scales"))
        bits, groups = _columns(stored, base, packed, len(scales.data))
        num_columns, num_rows = len(groups), packed.shape[1]
        _check(zeros, (len(scales.data), -(-num_rows * bits // 32)))
        _check(scales, (len(scales.data), num_rows))
        decode = _gptq_rows(packed, zeros, scales, groups, bits, zero_offset)
        yield stored.decoded(f"{base}weight", (num_rows, num_columns), decode, main, *_parts(stored, base))


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
        (index is None or index.is_integer)
        and bits in _GPTQ_BITS
        and packed.shape[0] * 32 == len(groups) * bits
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


def awq_weights(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights in AWQ's order."""
    bits = stored.settings.get("bits", int, stored.settings.get("w_bit", int, _AWQ_BITS))
    if bits != _AWQ_BITS:
        raise UnsupportedError(f"{stored.settings.path}: AWQ with {bits} bits cannot be decoded, only with 4")
    for main, packed in stored.ending(_PACKED):
        base = main.removesuffix("qweight")
        zeros, scales = (stored.require(f"{base}{part}", main) for part in ("qzeros", "scales"))
        num_columns, num_rows, num_groups = packed.shape[0], packed.shape[-1] * 8, len(scales.data)
        if len(packed.shape) != 2 or num_groups == 0 or num_columns % num_groups:
            raise ModelError(
                f"{packed.path}: tensor {packed.name!r} {packed.shape} does not hold {num_groups} groups"
            )
        _check(zeros, (num_groups, packed.shape[1]))
        _check(scales, (num_groups, num_rows))
        decode = _awq_rows(packed, zeros, scales)
        yield stored.decoded(f"{base}weight", (num_rows, num_columns), decode, main, *_parts(stored, base))


def _awq_rows(packed: SafeTensor, zeros: SafeTensor, scales: SafeTensor) -> DecodeRows:
    codes, packed_zeros = words(packed), words(zeros)
    groups = block_of(len(codes), len(codes) // len(packed_zeros))

    def decode(rows: Rows) -> F32:
        places = rows // 8 * 8 + _AWQ_PLACES[rows % 8]
        values = unpacked(codes, places, _AWQ_BITS).T
        values = values - unpacked(packed_zeros, places, _AWQ_BITS).T[:, groups]
        return values.astype(np.float32) * numbers(scales, scales.data[:, rows]).T[:, groups]

    return decode


def _check(tensor: SafeTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ModelError(f"{tensor.path}: tensor {tensor.name!r} has shape {tensor.shape}, not {shape}")


def _parts(stored: Stored, base: str) -> Iterator[str]:
    """Yield the names of a module's tensors. A bias of zeros, which some quantizers add, is one of them."""
    for part in _PARTS:
        each = stored.get(f"{base}{part}")
        if each is not None and (part != "bias" or not each.data.any()):
            yield f"{base}{part}"
