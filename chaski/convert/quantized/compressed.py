"""compressed-tensors (llm-compressor): the formats whose weights are integers packed into words of 32 bits.

A weight has `weight_packed` (rows, words), `weight_shape`, `weight_scale` of its rows or of groups of
columns, and possibly `weight_zero_point` (packed along rows) and `weight_g_idx`, the group of each column.
Stored integers are signed ones plus half of their range. The other formats are those of `scaled` and `pairs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.quantized.decoded_array import F32, DecodeRows, Rows, indices
from chaski.convert.quantized.elements import (
    Blocks,
    OfElements,
    at,
    block_of,
    scaled,
    unfitting,
    unpacked,
    words,
)
from chaski.convert.quantized.module import Decoded, Stored
from chaski.convert.quantized.scaled import block_sizes
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.safetensors import SafeTensor

__all__ = ["check_compressed", "decode_packed"]

_FORMATS = (
    *("dense", "float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
    *("mixed-precision", "mxfp4-pack-quantized", "mxfp8-quantized", "nvfp4-pack-quantized"),
)


def check_compressed(settings: Config) -> None:
    """Raise UnsupportedError for a format that cannot be decoded, and for weights that were rotated."""
    formats = [settings.get("format", str, "dense")]
    formats += [group.get("format", str, "dense") for group in _groups(settings)]
    if unknown := sorted(set(formats).difference(_FORMATS)):
        raise UnsupportedError(
            f"{settings.path}: compressed-tensors format {unknown[0]!r:.80} cannot be decoded; known are "
            f"{', '.join(_FORMATS)}"
        )
    sparsity = settings.part("sparsity_config").get("format", str, "dense")
    if sparsity != "dense":
        raise UnsupportedError(
            f"{settings.path}: weights of sparse format {sparsity!r:.80} cannot be decoded, only dense ones"
        )
    if settings.part("transform_config").values:
        raise UnsupportedError(
            f"{settings.path}: weights with a 'transform_config' need transforms of the activations, which "
            "GGUF cannot express"
        )


def _groups(settings: Config) -> list[Config]:
    groups = settings.part("config_groups")
    return [groups.part(name) for name, group in groups.values.items() if isinstance(group, dict)]


def decode_packed(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights that are packed integers. Raises ModelError for parts that do not fit together."""
    check_compressed(stored.settings)
    bits = {group.part("weights").get("num_bits", int, 0) for group in _groups(stored.settings)}
    for main, packed in stored.ending(".weight_packed"):
        if packed.dtype == "U8":
            continue  # pairs of FP4
        name = main.removesuffix("_packed")
        shape = _shape(stored.require(f"{name}_shape", main), packed)
        width = _width(packed, shape[-1], bits - {0})
        decode = _values(stored, name, packed, shape, width)
        parts = (f"{name}_{part}" for part in ("shape", "scale", "zero_point", "g_idx"))
        yield stored.decoded(name, shape, decode, main, *parts)


def _shape(stored: SafeTensor, packed: SafeTensor) -> tuple[int, ...]:
    """Return the weight's shape, which a tensor of integers contains."""
    shape = tuple(int(size) for size in stored.data.reshape(-1)) if stored.is_integer else ()
    if len(shape) != len(packed.shape) or len(shape) < 2 or shape[:-1] != packed.shape[:-1] or shape[-1] < 1:
        raise ModelError(
            f"{stored.path}: tensor {stored.name!r} says {shape}, which does not fit {packed.name!r} of "
            f"shape {packed.shape}"
        )
    return shape


def _width(packed: SafeTensor, num_columns: int, choices: set[int]) -> int:
    """Return the bits of an integer: those of the configuration that need as many words as a row has."""
    fitting = [bits for bits in sorted(choices) if -(-num_columns * bits // 32) == packed.shape[-1]]
    if len(fitting) != 1 or not 1 <= fitting[0] <= 8:
        raise ModelError(
            f"{packed.path}: tensor {packed.name!r} {packed.shape} does not hold {num_columns} columns of "
            f"{' or '.join(map(str, sorted(choices))) or 'unknown'} bits"
        )
    return fitting[0]


def _values(stored: Stored, name: str, packed: SafeTensor, shape: tuple[int, ...], bits: int) -> DecodeRows:
    scale = stored.require(f"{name}_scale", f"{name}_packed")
    groups = _group_indices(stored.get(f"{name}_g_idx"))
    scales = Blocks.of(scale, shape, block_sizes(stored), groups)
    half, codes, positions = 1 << bits - 1, words(packed), indices(shape[-1])
    zero = stored.get(f"{name}_zero_point")
    zeros: OfElements | None = None
    if zero is not None and zero.dtype == "I8":
        zeros = Blocks.of(zero, shape, block_sizes(stored), groups)
    elif zero is not None:
        zeros = _PackedZeros.of(zero, shape, scale.shape[-1], bits, groups)

    def decode(rows: Rows) -> F32:
        values = (unpacked(at(codes, rows), positions, bits) - half).astype(np.float32)
        return scaled(values, rows, scales, zeros)

    return decode


def _group_indices(stored: SafeTensor | None) -> Rows | None:
    """Return the group of each column; None if groups are successive columns, which -1 means too."""
    if stored is None or not stored.is_integer or (stored.data == -1).all():
        return None
    return stored.data.reshape(-1)


class _PackedZeros(Struct, frozen=True):
    """Zero points that are packed along rows.

    streams: words (matrices, groups, packed rows). groups: the group of each column.
    """

    streams: NDArray[np.uint32]
    num_rows: int
    bits: int
    groups: Rows

    @classmethod
    def of(
        cls, stored: SafeTensor, shape: tuple[int, ...], num_groups: int, bits: int, groups: Rows | None
    ) -> _PackedZeros:
        """Return the zero points of a tensor of `shape`. Raises ModelError if they do not fit."""
        *matrices, num_rows, num_columns = shape
        if stored.shape != (*matrices, -(-num_rows * bits // 32), num_groups):
            raise unfitting(stored, shape)
        streams = words(stored).reshape(-1, *stored.shape[-2:]).swapaxes(1, 2)
        found = block_of(num_columns, num_columns // num_groups) if groups is None else groups
        return cls(streams, num_rows, bits, found)

    def at(self, rows: Rows) -> NDArray[Any]:
        matrix, row = np.divmod(rows, self.num_rows)
        found = np.empty((len(rows), self.streams.shape[1]), np.float32)
        for each in np.unique(matrix):
            some = matrix == each
            found[some] = unpacked(self.streams[each], row[some], self.bits).T
        return np.take(found - (1 << self.bits - 1), self.groups, axis=1)
