"""Key shift: keys move to lower positions, rotated back by the angles of the distance.

Tokens that stay before them in a page are copied next to them: a page has one place for each position.

A rotary embedding rotates a key by position · frequency, so a key that moves down by d positions rotates back
by d · frequency, whatever its position was. Values do not depend on positions. A key in 16 bits is rounded
once more with each move.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, Rope, Tensor

__all__ = ["CellCopy", "KeyShift"]

I32 = npt.NDArray[np.int32]


class KeyShift:
    """A plan that rotates the keys in up to `max_cells` cells of all layers, compiled with the cache.

    `keys` has the storage of each layer and the rope that rotated its keys. Their magnitude stays.
    """

    def __init__(self, backend: Backend, keys: Sequence[tuple[KVBuffer, Rope]], max_cells: int) -> None:
        self._max_cells = max_cells
        graph = Graph()
        cells = graph.input("cells", (Dim("cells", max_cells),), DType.I32)
        distances = graph.input("distances", cells.shape, DType.I32)
        tables: dict[tuple[bytes, bool], Tensor] = {}
        for buffer, rope in keys:
            name = rope.frequencies.tobytes(), rope.neox
            if name not in tables:
                tables[name] = ops.rope_table(distances, Rope(-rope.frequencies, rope.neox))
            ops.rotate_cells(cells, tables[name], buffer)
        self._plan = backend.compile(graph)

    def move_down(self, cells: I32, distance: int) -> None:
        """Rotate the keys in `cells` to positions that are lower by `distance`."""
        for begin in range(0, len(cells), self._max_cells):
            part = cells[begin : begin + self._max_cells]
            self._plan.launch({"cells": part, "distances": np.full_like(part, distance)}).wait()


class CellCopy:
    """A plan that copies the content of up to `max_cells` cells in all layers, compiled with the cache."""

    def __init__(self, backend: Backend, buffers: Sequence[KVBuffer], max_cells: int) -> None:
        graph = Graph()
        sources = graph.input("sources", (Dim("cells", max_cells),), DType.I32)
        targets = graph.input("targets", sources.shape, DType.I32)
        for buffer in buffers:
            ops.copy_cells(sources, targets, buffer)
        self._plan = backend.compile(graph)

    def copy(self, sources: I32, targets: I32) -> None:
        """Copy `sources` to `targets`. No target may be a source."""
        self._plan.launch({"sources": sources, "targets": targets}).wait()
