"""The elements of stored tensors: small floats, packed integers, and scales shared by blocks of elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.quantized.decoded_array import F32, Rows
from chaski.errors import ModelError
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import SafeTensor

__all__ = ["FLOATS_OF_8", "FP4", "Blocks", "at", "fp4_of", "numbers", "scaled", "unpacked", "words"]

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


def numbers(tensor: SafeTensor, values: NDArray[Any] | None = None, exponents: bool = False) -> F32:
    """Return `values` of a tensor, by default all, as float32.

    exponents: bytes without a type of float are E8M0, exponents of two.
    """
    values = tensor.data if values is None else values
    table = FLOATS_OF_8.get("F8_E8M0" if exponents and tensor.dtype == "U8" else tensor.dtype)
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


class Blocks(Struct, frozen=True):
    """Numbers that blocks of a tensor's elements share: scales or zero points.

    values: (matrices * block rows, block columns).
    num_rows: rows of a matrix of the tensor. row_block: rows of a block.
    columns: the block column of each column; None if all are in the first one.
    """

    values: NDArray[Any]
    num_rows: int
    row_block: int
    columns: Rows | None

    @classmethod
    def of(
        cls,
        what: SafeTensor,
        values: NDArray[Any],
        shape: tuple[int, ...],
        sizes: tuple[int, ...] = (),
        groups: Rows | None = None,
    ) -> Blocks:
        """Return the blocks of a tensor of `shape`. Raises ModelError if they do not fit.

        what: the tensor that `values` come from. sizes: the rows and columns of a block, where they are
        known. groups: the block column of each column, where it is stored.
        """
        matrices, (num_rows, num_columns) = shape[:-2], shape[-2:]
        grid = _grid(values.shape, shape)
        if grid is None:
            raise _unfitting(what, values.shape, shape)
        row_size, column_size = sizes if len(sizes) == 2 else (0, 0)
        rows = _block_size(num_rows, grid[0], row_size)
        columns = _block_size(num_columns, grid[1], column_size)
        if rows is None or (columns is None and groups is None):
            raise _unfitting(what, values.shape, shape)
        flat = np.broadcast_to(values.reshape(-1, *grid), (math.prod(matrices), *grid)).reshape(-1, grid[1])
        if groups is None and columns is not None and grid[1] > 1:
            groups = np.arange(num_columns) // columns
        if groups is not None and (len(groups) != num_columns or not _within(groups, grid[1])):
            raise _unfitting(what, values.shape, shape)
        return cls(flat, num_rows, rows, groups)

    def at(self, rows: Rows) -> NDArray[Any]:
        """Return the number of each element of these rows, (n, columns) or (n, 1)."""
        matrix, row = np.divmod(rows, self.num_rows)
        of_matrix = -(-self.num_rows // self.row_block)
        values: NDArray[Any] = self.values[matrix * of_matrix + row // self.row_block]
        return values if self.columns is None else np.take(values, self.columns, axis=1)


def scaled(values: F32, rows: Rows, scales: Blocks, zeros: Blocks | None = None) -> F32:
    """Return (value - zero point) * scale of the elements of rows, (n, columns)."""
    found: F32 = (values if zeros is None else values - zeros.at(rows)) * scales.at(rows)
    return found


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


def _unfitting(what: SafeTensor, stored: tuple[int, ...], shape: tuple[int, ...]) -> ModelError:
    return ModelError(f"{what.path}: tensor {what.name!r} {stored} does not fit a weight of shape {shape}")
