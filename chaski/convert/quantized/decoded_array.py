"""Arrays whose elements are decoded when they are asked for, a part at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import EllipsisType
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from chaski.formats.safetensors import SafeTensor

__all__ = ["F32", "DecodeRows", "Rows", "decoded_tensor", "indices"]

F32: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.intp]
DecodeRows: TypeAlias = Callable[[Rows], F32]
"""Decodes rows of a tensor: indices (n,) of its rows, all leading axes counted as one -> (n, columns)."""

_ELEMENTS_AT_ONCE = 1 << 20
_Key: TypeAlias = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]


def decoded_tensor(name: str, stored: SafeTensor, shape: tuple[int, ...], decode: DecodeRows) -> SafeTensor:
    """Return an F32 tensor of `shape` (…, columns). `stored` is the main tensor that it is decoded from."""
    rows = indices(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    decoder = _Decoder(decode, shape[-1])
    columns = indices(shape[-1])
    array = _DecodedArray(decoder, np.broadcast_to(rows, shape), np.broadcast_to(columns, shape))
    return SafeTensor(name, "F32", shape, stored.path, cast(NDArray[Any], array))


@lru_cache(maxsize=64)
def indices(count: int) -> Rows:
    """Return 0, 1, and so on. Tensors of the same shape share them."""
    return np.arange(count)


class _Decoder:
    """Decodes rows of a tensor, and keeps the last block that was decoded of any."""

    def __init__(self, decode: DecodeRows, num_columns: int) -> None:
        self.rows = decode
        self._num_columns = num_columns

    @lru_cache(maxsize=1)  # noqa: B019 (one block for all, which the next one replaces)
    def block(self, begin: int, end: int) -> F32:
        """Return the rows from `begin` to `end`."""
        values = np.empty((end - begin, self._num_columns), np.float32)
        step = max(1, _ELEMENTS_AT_ONCE // self._num_columns)
        for first in range(begin, end, step):
            last = min(first + step, end)
            values[first - begin : last - begin] = self.rows(np.arange(first, last))
        return values


class _DecodedArray:
    """The part of a NumPy array's interface that arrangements of matrices use. Views decode nothing.

    NumPy decodes the elements of a view when it makes an array of it. Rows that remain whole are decoded
    alone. For other views, such as parts of a transposed matrix, all rows between the first and the last one
    are decoded; the last decoded block is kept for the next part. Any other operation decodes all elements.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, decoder: _Decoder, rows: Rows, columns: Rows) -> None:
        self._decoder = decoder
        # The row and the column of each element, mostly as views with strides of zero.
        self._rows = rows
        self._columns = columns

    @property
    def shape(self) -> tuple[int, ...]:
        return self._rows.shape

    @property
    def ndim(self) -> int:
        return self._rows.ndim

    @property
    def size(self) -> int:
        return self._rows.size

    @property
    def T(self) -> _DecodedArray:  # noqa: N802 (NumPy's name)
        return self.transpose()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: _Key) -> _DecodedArray:
        return self._view(lambda each: each[key])

    def __iter__(self) -> Iterator[_DecodedArray]:
        return (self[index] for index in range(len(self)))

    def reshape(self, *shape: Any) -> _DecodedArray:
        return self._view(lambda each: each.reshape(*shape))

    def swapaxes(self, first: int, second: int) -> _DecodedArray:
        return self._view(lambda each: each.swapaxes(first, second))

    def transpose(self, *axes: Any) -> _DecodedArray:
        return self._view(lambda each: each.transpose(*axes))

    def __getattr__(self, name: str) -> Any:
        """Return what the decoded array has, for operations that are not views of whole matrices."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self._elements().reshape(self.shape)
        return values if dtype is None else values.astype(dtype, copy=False)

    def _view(self, change: Callable[[Rows], Rows]) -> _DecodedArray:
        return _DecodedArray(self._decoder, change(self._rows), change(self._columns))

    def _elements(self) -> F32:
        if not self.size:
            return np.empty(0, np.float32)
        if not self.ndim:
            return self.reshape(1)._elements()
        if self._rows.strides[-1] == 0 and not any(self._columns.strides[:-1]):
            columns = self._columns[(0,) * (self.ndim - 1)]
            return self._decoder.rows(self._rows[..., 0].reshape(-1))[:, columns]
        begin, end = int(self._rows.min()), int(self._rows.max()) + 1
        return self._decoder.block(begin, end)[self._rows - begin, self._columns]
