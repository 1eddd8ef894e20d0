"""Key/value storage and attention on plain arrays, with plans of any backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski import _native
from chaski.ml import CPUOptions, Options, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, KVRole, Mask
from chaski.ml.reference.cached_ops import Storage

from .both_backends import bound

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


class Attender:
    """Stores k (n, kv_heads, size) and v in separate cells; attends with rows of q (m, heads, size).

    If v is a number, values are that many last elements of k.
    """

    def __init__(
        self,
        directory: Path,
        backend: str,
        q: F32,
        k: F32,
        v: F32 | int,
        cells: I32,
        *,
        types: tuple[DType, DType] = (DType.F32, DType.F32),
        options: Sequence[Options] = (CPUOptions(threads=2),),
        sinks: F32 | None = None,
        softcap: float = 0.0,
        table: F32 | None = None,
        num_cells: int = 1024,
    ) -> None:
        self.backend = open_backend(backend, *options)
        (count, kv_heads, size), value_size = k.shape, v if isinstance(v, int) else v.shape[2]
        tokens, heads, _ = q.shape
        arrays = {"q": q.reshape(tokens, -1), "k": k.reshape(count, -1)}
        if not isinstance(v, int):
            arrays["v"] = v.reshape(count, -1)
        if sinks is not None:
            arrays["sinks"] = sinks
        weights = bound(self.backend, directory, arrays)
        self.keys = self.backend.kv_buffer(KVRole.KEYS, num_cells, kv_heads, size, types[0])
        self.values = self.keys
        if not isinstance(v, int):
            self.values = self.backend.kv_buffer(KVRole.VALUES, num_cells, kv_heads, value_size, types[1])
        self.cells = cells
        self._num_rows = tokens
        graph = Graph()
        ids = graph.input("ids", (Dim("stored", count),), DType.I32)
        where = graph.input("where", ids.shape, DType.I32)
        rows = graph.input("rows", (Dim("tokens", tokens),), DType.I32)
        history = graph.input("history", (Dim("history", 2 * count),), DType.I32)
        spans = graph.input("spans", (rows.shape[0], 3), DType.I32)
        positions = graph.input("positions", rows.shape, DType.I32) if table is not None else None
        bias = None if table is None or positions is None else ops.DistanceBias(table, positions)
        stored_k = ops.store(ops.embedding(ids, weights["k"]).reshape(kv_heads, size), where, self.keys)
        stored_v = ops.stored(graph, self.values, value_size)
        if not isinstance(v, int):
            rows_of_v = ops.embedding(ids, weights["v"]).reshape(kv_heads, value_size)
            stored_v = ops.store(rows_of_v, where, self.values)
        queries = ops.embedding(rows, weights["q"]).reshape(heads, size)
        y = ops.attention(
            queries,
            stored_k,
            stored_v,
            Mask(history, spans),
            size**-0.5,
            weights.get("sinks"),
            softcap,
            bias,
        )
        self._has_positions = positions is not None
        graph.output("y", y.reshape(heads * value_size))
        self.plan = self.backend.compile(graph)
        self._run(np.arange(count), np.zeros(0, np.int32), np.zeros((0, 3), np.int32), cells[:0])

    def attend(self, rows: npt.ArrayLike, spans: npt.ArrayLike, cells: I32 | None = None) -> F32:
        """Attend with rows of q over spans (begin, end, first) of the history, by default all cells."""
        return self._run(np.zeros(0, np.int32), rows, spans, self.cells if cells is None else cells)

    def _run(self, ids: npt.ArrayLike, rows: npt.ArrayLike, spans: npt.ArrayLike, cells: I32) -> F32:
        ids, rows = np.asarray(ids), np.asarray(rows)
        inputs = {"ids": ids, "where": self.cells[ids], "rows": rows, "history": cells}
        if self._has_positions:  # rows of q belong to the last tokens
            inputs["positions"] = len(self.cells) - self._num_rows + rows
        return self.plan.launch(inputs | {"spans": np.asarray(spans)}).rows("y").copy()


def contents(storage: object, isa: str, num_cells: int, heads: int, size: int) -> F32:
    """Return the stored values as floats (cells, heads, size)."""
    if isinstance(storage, Storage):
        return storage.rows.copy()
    if not isinstance(storage, _native.KVStorage):
        pytest.skip("another backend keeps them in a layout of its own, which its own tests read")
    rows = np.empty((num_cells, heads, size), np.float32)
    for cell in range(num_cells):
        storage.read(isa, cell, rows[cell])
    return rows
