"""`combine`: arranges the low-rank factors of checkpoint matrices in the order of a GGUF tensor.

A GGUF tensor contains the rows and columns of its source in another order, some rows of one source, or the
rows of several sources. The rows of B and the columns of A are arranged in the same way. If a tensor combines
several sources, its rank is the sum of their ranks, and each source has its own rows of A and columns of B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.tensors import Arrange, Concatenated, Mapped, Planned, TensorShape, parts_of
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import SafeTensor

__all__ = ["Factors", "Pair", "combine"]

F32: TypeAlias = NDArray[np.float32]


class Pair(Struct, frozen=True):
    """The factors of a change to a matrix of the checkpoint: scale · second @ first.

    first: A, (rank, columns). second: B, (rows, rank).
    """

    first: SafeTensor
    second: SafeTensor
    scale: float

    @property
    def rank(self) -> int:
        return self.first.shape[0]


class _Piece(Struct, frozen=True):
    """The factors of some rows of a tensor.

    rows, columns: indices into the source, in the order of the tensor. begin: the piece's first row in the
    tensor.
    """

    pair: Pair
    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    begin: int


class Factors(Struct, frozen=True):
    """The factors of a GGUF tensor of `shape` (rows, columns). Elements are read on demand.

    groups: pieces grouped by source; the pieces of a group share their rows of A.
    """

    shape: TensorShape
    groups: Sequence[Sequence[_Piece]]

    @property
    def rank(self) -> int:
        return sum(group[0].pair.rank for group in self.groups)

    @property
    def first_shape(self) -> TensorShape:
        return self.rank, self.shape[1]

    @property
    def second_shape(self) -> TensorShape:
        return self.shape[0], self.rank

    def first(self) -> F32:
        """Return A, (rank, columns)."""
        return np.concatenate([_values(group[0].pair.first)[:, group[0].columns] for group in self.groups])

    def second(self, alpha: float) -> F32:
        """Return B, (rows, rank), for readers that compute the scale as `alpha` divided by the rank."""
        found, begin = np.zeros(self.second_shape, np.float32), 0
        for group in self.groups:
            end = begin + group[0].pair.rank
            for piece in group:
                factor = piece.pair.scale * self.rank / alpha
                rows = slice(piece.begin, piece.begin + len(piece.rows))
                found[rows, begin:end] = _values(piece.pair.second)[piece.rows] * np.float32(factor)
            begin = end
        return found


def combine(planned: Planned, pairs: Mapping[str, Pair]) -> Factors:
    """Combine the factors of a tensor's sources. A source without factors adds nothing.

    Raises ModelError for factors of the wrong size, and UnsupportedError for a tensor that is not a matrix or
    does not consist of whole rows and columns of its sources.
    """
    if isinstance(planned, Concatenated):
        parts: tuple[Mapped, ...] = planned.parts
    elif isinstance(planned, Mapped):
        parts = (planned,)
    else:
        raise _unsupported(planned)
    groups: dict[tuple[str, bytes], list[_Piece]] = {}
    begin = 0
    for part in parts:
        shape = part.sources[part.names[0]]
        if len(part.shape) != 2 or len(shape) != 2 or part.function is not None:
            raise _unsupported(planned)
        order = _order(part.arrange, shape, part.shape[1])
        if order is None:
            raise _unsupported(planned)
        rows, columns = order
        for name in part.names:
            if name in pairs:
                _check(name, pairs[name], shape)
                piece = _Piece(pairs[name], rows, columns, begin)
                groups.setdefault((name, columns.tobytes()), []).append(piece)
            begin += len(rows)
    return Factors((begin, planned.shape[1]), list(groups.values()))


def _check(name: str, pair: Pair, shape: TensorShape) -> None:
    found = pair.second.shape[0], pair.first.shape[1]
    if found != shape:
        raise ModelError(
            f"{pair.first.path}: the adapter of {name!r:.200} has shape {found}, but its matrix has {shape}"
        )


def _unsupported(planned: Planned) -> UnsupportedError:
    return UnsupportedError(
        f"an adapter of {planned.name!r} cannot be converted: the tensor is not a single matrix"
    )


@lru_cache(maxsize=64)
def _order(
    arrange: Arrange, source: TensorShape, width: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Return the source rows and columns of a tensor with `width` columns; None if they are not whole."""
    row_numbers = np.broadcast_to(np.arange(source[0], dtype=np.int32)[:, None], source)
    column_numbers = np.broadcast_to(np.arange(source[1], dtype=np.int32), source)
    rows, columns = [], None
    for row_part, column_part in zip(
        parts_of(arrange(row_numbers)), parts_of(arrange(column_numbers)), strict=True
    ):
        of_rows, of_columns = row_part.reshape(-1, width), column_part.reshape(-1, width)
        columns = of_columns[0].copy() if columns is None else columns
        if (of_rows != of_rows[:, :1]).any() or (of_columns != columns).any():
            return None
        rows.append(of_rows[:, 0].copy())
    return None if columns is None else (np.concatenate(rows), columns)


def _values(tensor: SafeTensor) -> F32:
    return as_float32(tensor.data)
