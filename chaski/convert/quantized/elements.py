"""The elements of stored tensors: small floats, packed integers, and scales shared by blocks of elements."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.quantized.decoded_array import F32, Rows
from chaski.errors import ModelError
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import SafeTensor

__all__ = [
    "FLOATS_OF_8",
    "FP4",
    "Blocks",
    "OfElements",
    "at",
    "block_of",
    "fp4_of",
    "numbers",
    "scaled",
    "unfitting",
    "unpacked",
    "words",
]

# The values of E2M1: a sign, two bits of exponent, one of mantissa.
FP4 = np.array([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _small_floats(exponent_bits: int, mantissa_bits: int) -> F32:
    """Return the finite values of all bytes of a float with a sign, as if it had no special values."""
    codes = np.arange(256)
    exponents = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissas = (codes & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    bias = (1 << exponent_bits - 1) - 1
    values = np.ldexp(mantissas + (exponents > 0), np.maximum(exponents, 1) - bias)
    found: F32 = np.where(codes < 128, values, -values).astype(np.float32)
    return found


def _tables() -> dict[str, F32]:
    e4m3, e5m2 = _small_floats(4, 3), _small_floats(5, 2)
    e4m3[[0x7F, 0xFF]] = np.nan
    e5m2[[0x7C, 0xFC]] = np.inf, -np.inf
    e5m2[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    e8m0 = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(np.float32)
    return {"F8_E4M3": e4m3, "F8_E5M2": e5m2, "F8_E8M0": e8m0}


FLOATS_OF_8 = _tables()
"""The value of each byte, by type."""


def at(array: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """Return rows of an array whose leading axes count as one. Successive rows are a view."""
    flat = array.reshape(-1, array.shape[-1])
    begin = int(rows[0])
    if len(rows) == int(rows[-1]) - begin + 1 and (np.diff(rows) == 1).all():
        return flat[begin : begin + len(rows)]
    return flat[rows]


def numbers(tensor: SafeTensor, values: NDArray[Any] | None = None) -> F32:
    """Return `values` of a tensor, by default all, as float32. Bytes are E8M0, exponents of two.

    Raises ModelError for a tensor of larger integers.
    """
    values = tensor.data if values is None else values
    table = FLOATS_OF_8.get("F8_E8M0" if tensor.dtype == "U8" else tensor.dtype)
    if table is not None:
        found: F32 = table[values]
        return found
    if not tensor.is_float and tensor.dtype != "I8":
        raise ModelError(
            f"{tensor.path}: tensor {tensor.name!r} holds {tensor.dtype}, not numbers of a scale"
        )
    return as_float32(values)


def fp4_of(pairs: NDArray[np.uint8]) -> F32:
    """Return the values of bytes (…, n) with two FP4 elements each, the first in its low half: (…, 2n)."""
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1)
    return FP4[codes.reshape(*pairs.shape[:-1], -1)]


def words(tensor: SafeTensor) -> NDArray[np.uint32]:
    """Return the words of a tensor of packed integers. Raises ModelError if it holds others."""
    if tensor.dtype not in ("I32", "U32"):
        raise ModelError(
            f"{tensor.path}: tensor {tensor.name!r} holds {tensor.dtype}, not packed words of I32"
        )
    return tensor.data.view(np.uint32)


def unpacked(packed: NDArray[np.uint32], positions: Rows, bits: int) -> NDArray[np.int32]:
    """Return the integers at `positions` of streams of bits, which begin at the lowest bit of each row.

    packed: (rows, words). An integer may span two words.
    """
    word, offset = np.divmod(positions * bits, 32)
    values = packed[:, word] >> offset.astype(np.uint32)
    spanning = np.flatnonzero(offset + bits > 32)
    if len(spanning):
        rest = (32 - offset[spanning]).astype(np.uint32)
        values[:, spanning] |= packed[:, word[spanning] + 1] << rest
    return (values & np.uint32((1 << bits) - 1)).astype(np.int32)


class OfElements(Protocol):
    """Numbers that belong to a tensor's elements."""

    def at(self, rows: Rows) -> NDArray[Any]:
        """Return the numbers of these rows, (n, columns), or (n, 1) where those of a row are the same."""


class Blocks(Struct, frozen=True):
    """Scales or zero points that blocks of a tensor's elements share. They are read when they are needed.

    stored: the tensor that contains them. values: its elements, (matrices * block rows, block columns).
    shape: rows and columns of a matrix of the tensor. sizes: rows and columns of a block.
    groups: the block column of each column, where the checkpoint stores it.
    factor, divisor: a number for all blocks, or for the blocks of each matrix.
    """

    stored: SafeTensor
    values: NDArray[Any]
    shape: tuple[int, int]
    sizes: tuple[int, int]
    groups: Rows | None = None
    factor: SafeTensor | None = None
    divisor: SafeTensor | None = None

    @classmethod
    def of(
        cls,
        stored: SafeTensor,
        shape: tuple[int, ...],
        sizes: tuple[int, ...] = (),
        groups: Rows | None = None,
        factor: SafeTensor | None = None,
        divisor: SafeTensor | None = None,
    ) -> Blocks:
        """Return the blocks of a tensor of `shape`. Raises ModelError if they do not fit.

        sizes: the rows and columns of a block, where they are known.
        """
        num_matrices, (num_rows, num_columns) = math.prod(shape[:-2]), shape[-2:]
        grid = _grid(stored.shape, shape)
        if grid is None:
            raise unfitting(stored, shape)
        known = sizes if len(sizes) == 2 else (0, 0)
        rows = _block_size(num_rows, grid[0], known[0])
        columns = num_columns if groups is not None else _block_size(num_columns, grid[1], known[1])
        if rows is None or columns is None:
            raise unfitting(stored, shape)
        if groups is not None and (len(groups) != num_columns or not _within(groups, grid[1])):
            raise unfitting(stored, shape)
        for whole in (factor, divisor):
            if whole is not None and whole.data.size not in (1, num_matrices):
                raise unfitting(whole, shape)
        numbers(stored, stored.data.reshape(-1)[:1])
        every = np.broadcast_to(stored.data.reshape(-1, *grid), (num_matrices, *grid))
        flat = every.reshape(-1, grid[1])
        return cls(stored, flat, (num_rows, num_columns), (rows, columns), groups, factor, divisor)

    def at(self, rows: Rows) -> NDArray[Any]:
        num_rows, num_columns = self.shape
        matrix, row = np.divmod(rows, num_rows)
        values = numbers(
            self.stored, self.values[matrix * -(-num_rows // self.sizes[0]) + row // self.sizes[0]]
        )
        if self.divisor is not None:
            values = values / _of_matrices(self.divisor, matrix)
        if self.factor is not None:
            values = values * _of_matrices(self.factor, matrix)
        if self.groups is not None:
            return np.take(values, self.groups, axis=1)
        return (
            values if values.shape[1] == 1 else np.take(values, block_of(num_columns, self.sizes[1]), axis=1)
        )


def scaled(values: F32, rows: Rows, scales: OfElements, zeros: OfElements | None = None) -> F32:
    """Return (value - zero point) * scale of the elements of rows, (n, columns)."""
    found: F32 = (values if zeros is None else values - zeros.at(rows)) * scales.at(rows)
    return found


@lru_cache(maxsize=64)
def block_of(count: int, size: int) -> Rows:
    """Return the block of each of `count` elements, in blocks of `size`."""
    return np.arange(count) // size


def _of_matrices(whole: SafeTensor, matrix: Rows) -> F32:
    values = numbers(whole).reshape(-1)
    return values if len(values) == 1 else values[matrix, None]


def _grid(stored: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the rows and columns of blocks in a matrix, or None if the leading axes differ."""
    if math.prod(stored) == 1:
        return 1, 1
    matrices, num_rows = shape[:-2], shape[-2]
    if len(stored) == len(shape) and stored[:-2] == matrices:
        return stored[-2], stored[-1]
    if stored == (*matrices, num_rows):
        return num_rows, 1
    return (1, 1) if matrices and stored in (matrices, (*matrices, 1)) else None


def _block_size(size: int, count: int, known: int) -> int | None:
    """Return the elements of a block along an axis of `size` with `count` blocks, None if there is none."""
    if count == 1:
        return size
    if known and -(-size // known) == count:
        return known
    return size // count if count and size % count == 0 else None


def _within(groups: Rows, count: int) -> bool:
    return len(groups) > 0 and bool(((groups >= 0) & (groups < count)).all())


def unfitting(stored: SafeTensor, shape: tuple[int, ...]) -> ModelError:
    """Return the error for a part of a weight of another shape."""
    return ModelError(
        f"{stored.path}: tensor {stored.name!r} {stored.shape} does not fit a weight of shape {shape}"
    )
