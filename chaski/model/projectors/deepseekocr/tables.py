"""Tables of positions in another size: each entry mixes a few entries of the file's table.

A view of an image has fewer patches than the table has places. The file's entries are resized as in the
published model: bicubic with antialiasing over a square of places (torch, with the sharpness -0.5), linear
over a line of distances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, Tensor

__all__ = ["Mixture", "SquareTable", "bicubic_taps", "linear"]

I32: TypeAlias = npt.NDArray[np.int32]
F32: TypeAlias = npt.NDArray[np.float32]
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_REACH = 2.0  # of the bicubic filter


class Mixture(Struct, frozen=True):
    """A tensor whose rows mix rows of another one: the inputs of a graph that define `taps` rows for each."""

    name: str
    taps: int

    def arrays(self, numbers: I32, shares: F32) -> Arrays:
        """Return the inputs for the mixed rows, both (taps, rows)."""
        found: dict[str, npt.NDArray[Any]] = {}
        for tap in range(self.taps):
            found[f"{self.name} {tap}"] = np.ascontiguousarray(numbers[tap], np.int32)
            found[f"{self.name} share {tap}"] = np.ascontiguousarray(shares[tap, :, None], np.float32)
        return found

    def declare(self, graph: Graph, dim: Dim) -> list[tuple[Tensor, Tensor]]:
        """Declare the inputs. They serve any number of tables."""
        return [
            (
                graph.input(f"{self.name} {tap}", (dim,), DType.I32),
                graph.input(f"{self.name} share {tap}", (dim, 1), DType.F32),
            )
            for tap in range(self.taps)
        ]


def mixed(rows: Callable[[Tensor], Tensor], inputs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the mixtures of the rows that `rows` returns for their numbers."""
    first, *others = (ops.scale_rows(rows(numbers), share) for numbers, share in inputs)
    for other in others:
        first = first + other
    return first


class SquareTable(Struct, frozen=True):
    """A table of `side`² places, line by line, in views of up to `side`² patches.

    first: the number of entries before the places, which are the first entries of views too, unchanged
    taps: the entries of a line that a patch mixes
    """

    name: str
    side: int
    taps: int
    first: int = 0

    def arrays(self, patches: int) -> Arrays:
        """Return the inputs for a view of `patches`²: columns of all lines are mixed first, then lines."""
        numbers, shares = _bicubic(self.side, patches, self.taps)
        lines = np.arange(self.side)[:, None] * self.side
        columns = self._with_first(lines + numbers[:, None, :], np.repeat(shares[:, None, :], self.side, 1))
        mixed_columns = numbers[:, :, None] * patches + np.arange(patches)
        rows = self._with_first(mixed_columns, np.repeat(shares[:, :, None], patches, 2))
        across, down = self._mixtures
        return {**across.arrays(*columns), **down.arrays(*rows)}

    def __call__(self, graph: Graph, entries: Callable[[Tensor], Tensor], dim: Dim) -> Tensor:
        """Return the table for a view of `dim` entries. `entries` returns those of the file's table."""
        across, down = self._mixtures
        most = Dim(f"{self.name} columns", self.first + self.side**2)
        columns = mixed(entries, across.declare(graph, most))
        return mixed(columns.rows, down.declare(graph, dim))

    @property
    def _mixtures(self) -> tuple[Mixture, Mixture]:
        return Mixture(f"{self.name} column", self.taps), Mixture(f"{self.name} row", self.taps)

    def _with_first(self, numbers: npt.NDArray[Any], shares: npt.NDArray[Any]) -> tuple[I32, F32]:
        """Return numbers and shares (taps, rows), with the entries before the places."""
        kept = np.tile(np.arange(self.first), (self.taps, 1))
        only = np.zeros((self.taps, self.first))
        only[0] = 1
        flat = numbers.reshape(self.taps, -1) + self.first, shares.reshape(self.taps, -1)
        return np.concatenate([kept, flat[0]], axis=1), np.concatenate([only, flat[1]], axis=1)


def bicubic_taps(side: int, patches: int) -> int:
    """Return how many of `side` places a patch mixes at most, in views of `patches` up to `side`."""
    return ceil(2 * _REACH * side / patches) + 1


def _bicubic(side: int, patches: int, taps: int) -> tuple[I32, F32]:
    """Return the places of a line that each patch mixes, and their shares, both (taps, patches)."""
    if side == patches:
        shares = np.zeros((taps, side), np.float32)
        shares[0] = 1
        return np.tile(np.arange(side, dtype=np.int32), (taps, 1)), shares
    scale = side / patches
    centers = (np.arange(patches) + 0.5) * scale
    first = np.floor(centers - _REACH * scale + 0.5).astype(np.int32)
    last = np.floor(centers + _REACH * scale + 0.5).astype(np.int32)
    numbers = first + np.arange(taps, dtype=np.int32)[:, None]
    weights = _cubic(np.abs(numbers + 0.5 - centers) / scale)
    weights[(numbers < 0) | (numbers >= np.minimum(last, side))] = 0
    return np.clip(numbers, 0, side - 1), (weights / weights.sum(axis=0)).astype(np.float32)


def _cubic(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = distance
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < _REACH, far, 0))


def linear(length: int, count: int) -> tuple[I32, F32]:
    """Return the two entries of `length` that each of `count` entries mixes, and their shares: (2, count)."""
    exact = np.maximum((np.arange(count) + 0.5) * length / count - 0.5, 0)
    low = np.floor(exact).astype(np.int32)
    share = (exact - low).astype(np.float32)
    numbers = np.stack([low, np.minimum(low + 1, length - 1)])
    return numbers, np.stack([1 - share, share])
