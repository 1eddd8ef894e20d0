"""A member's share of a plan: its pieces, computed one after the other by a backend of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.backend import Backend
from chaski.ml.plan import Launch
from chaski.ml.sharded.chunks import ROWS, in_chunks
from chaski.ml.sharded.exchange import Exchange
from chaski.ml.sharded.pieces import Gather, OwnedRows, Piece
from chaski.ml.sharded.placement import Cut

__all__ = ["MemberPlan", "Rows"]

Values = dict[str, npt.NDArray[Any]]


class Rows:
    """A result of one run, which stays what it is until nobody has it any more."""

    def __init__(self, launch: Launch | None, name: str, rows: npt.NDArray[np.float32] | None = None) -> None:
        """`rows`: the result itself, where it is in no launch."""
        self._launch = launch
        self._name = name
        self._rows = rows

    def fetch(self, begin: int = 0, end: int | None = None) -> npt.NDArray[np.float32]:
        """Its rows, each flat: (rows, width)."""
        if self._launch is None:
            assert self._rows is not None
            return self._rows[begin:end]
        return _flat(self._launch.rows(self._name, begin, end))


class _PiecePlan:
    """The plan of a piece."""

    def __init__(self, backend: Backend, piece: Piece) -> None:
        graph = piece.graph
        chunked = in_chunks(graph)
        self._is_chunked = chunked is not None
        self._outputs = list(graph.outputs)
        self._plan = backend.compile(chunked or graph)
        self._values = [name for name in graph.inputs if name in piece.values]
        self._ids = {name: piece.ids[name] for name in graph.inputs if name in piece.ids}
        self._inputs = [name for name in graph.inputs if name not in piece.values and name not in piece.ids]

    def run(self, values: Values, inputs: Values, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        """Compute it -> its outputs."""
        given = {name: values[name] for name in self._values}
        given |= {name: inputs[name] for name in self._inputs}
        for name, (source, (begin, end)) in self._ids.items():
            given[name] = np.clip(inputs[source] - begin, 0, end - begin - 1)
        count = len(next(iter(given.values()))) if given else 0
        if not self._is_chunked or count <= ROWS:
            launch = self._plan.launch(given, None if self._is_chunked else sizes)
            launch.wait()
            return {name: Rows(launch, name) for name in self._outputs}
        found: dict[str, npt.NDArray[np.float32]] = {}
        for begin in range(0, count, ROWS):
            launch = self._plan.launch({name: array[begin : begin + ROWS] for name, array in given.items()})
            launch.wait()
            for name in self._outputs:
                rows = _flat(launch.rows(name))
                if name not in found:
                    found[name] = np.empty((count, rows.shape[1]), np.float32)
                found[name][begin : begin + ROWS] = rows
        return {name: Rows(None, name, rows) for name, rows in found.items()}


class MemberPlan:
    """The pieces of a graph that the member `own` computes. `results` are values that may be asked for."""

    def __init__(
        self, backend: Backend, pieces: Sequence[Piece], results: Sequence[str], own: int, exchange: Exchange
    ) -> None:
        self._own = own
        self._exchange = exchange
        self._results = frozenset(results)
        self._pieces: list[tuple[Piece, _PiecePlan | None]] = [
            (piece, _PiecePlan(backend, piece) if piece.graph.nodes else None) for piece in pieces
        ]

    def run(self, run: int, inputs: Values, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        """Compute all pieces -> the results.

        Raises ClusterError where another member fails, and what computing a piece raises.
        """
        self._exchange.begin(run)
        values: Values = {}
        results: dict[str, Rows] = {}
        for piece, plan in self._pieces:
            for gather in piece.gathers:
                values[gather.value] = self._gathered(gather, values, inputs)
            if plan is not None:
                for name, rows in plan.run(values, inputs, sizes).items():
                    values[name] = rows.fetch()
                    if name in self._results:
                        results[name] = rows
            for send in piece.sends:
                array = values[send.value]
                if send.owned is not None:
                    array = array[_own_rows(inputs[send.owned.ids], send.owned.cuts[self._own])]
                for target in send.targets:
                    self._exchange.send(target, send.number, array)
        return results

    def _gathered(self, gather: Gather, values: Values, inputs: Values) -> npt.NDArray[Any]:
        parts = [
            values[gather.part] if source == self._own else self._exchange.take(source, gather.number)
            for source in gather.sources
        ]
        if gather.owned is not None:
            return self._by_owner(parts, inputs[gather.owned.ids], gather.owned)
        if len(parts) == 1:
            return parts[0]
        rows = len(parts[0])
        if gather.groups > 1:
            parts = [part.reshape(rows, gather.groups, part.shape[1] // gather.groups) for part in parts]
        whole = np.concatenate(parts, axis=-1)
        return whole.reshape(rows, gather.groups * whole.shape[-1])

    def _by_owner(
        self, parts: Sequence[npt.NDArray[Any]], ids: npt.NDArray[Any], owned: OwnedRows
    ) -> npt.NDArray[Any]:
        """Each row from the member whose part of the table has its id."""
        if sum(int(_own_rows(ids, cut).sum()) for cut in owned.cuts) < len(ids):
            raise ValueError(f"{owned.ids} has an index outside of 0 to {owned.cuts[-1][1] - 1}")
        found = np.empty((len(ids), parts[0].shape[1]), parts[0].dtype)
        for member, (part, cut) in enumerate(zip(parts, owned.cuts, strict=True)):
            own = _own_rows(ids, cut)
            found[own] = part[own] if member == self._own else part
        return found


def _own_rows(ids: npt.NDArray[Any], cut: Cut) -> npt.NDArray[np.bool_]:
    begin, end = cut
    rows: npt.NDArray[np.bool_] = (ids >= begin) & (ids < end)
    return rows


def _flat(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, int(np.prod(rows.shape[1:])))
