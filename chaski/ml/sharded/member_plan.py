"""A member's share of a plan: its pieces, computed one after the other by a backend of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, Graph, Tensor
from chaski.ml.plan import Launch, Plan, ReadsAhead
from chaski.ml.sharded.chunks import ROWS, Chunks, in_chunks
from chaski.ml.sharded.exchange import Exchange, Meanwhile
from chaski.ml.sharded.pieces import Gather, OwnedRows, Piece
from chaski.ml.sharded.placement import Cut, joined
from chaski.ml.sharded.rounding import RoundedRows

__all__ = ["MemberPlan", "Rows"]

Values = dict[str, npt.NDArray[Any]]


class Rows:
    """A result of one run, which stays what it is until nobody has it any more."""

    def __init__(
        self,
        launch: Launch | None,
        name: str,
        num_bytes: int,
        rows: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """`rows`: the result itself, where it is in no launch."""
        self._launch = launch
        self._name = name
        self.num_bytes = num_bytes
        self._rows = rows

    def fetch(self, begin: int = 0, end: int | None = None) -> npt.NDArray[np.float32]:
        """Its rows, each flat: (rows, width)."""
        if self._launch is None:
            assert self._rows is not None
            return self._rows[begin:end]
        return _flat(self._launch.rows(self._name, begin, end))


class _PiecePlan:
    """The plan of a piece, or those of its chunks."""

    def __init__(self, backend: Backend, piece: Piece) -> None:
        graph = piece.graph
        self._outputs = [(name, *_extent(node)) for name, node in graph.outputs.items()]
        self._values = [name for name in graph.inputs if name in piece.values]
        self._ids = {name: piece.ids[name] for name in graph.inputs if name in piece.ids}
        self._inputs = [name for name in graph.inputs if name not in piece.values and name not in piece.ids]
        self._chunks = in_chunks(graph)
        self._plan = backend.compile(graph if self._chunks is None else self._chunks.small)
        self._stages: list[tuple[Graph, Plan]] = []
        if self._chunks is not None:
            self._stages = [
                (stage, self._plan if stage is self._chunks.small else backend.compile(stage))
                for stage in self._chunks.stages
            ]

    @property
    def reads_ahead(self) -> ReadsAhead | None:
        """What can read its weights ahead; those of chunks are the same."""
        return self._plan if isinstance(self._plan, ReadsAhead) else None

    def run(self, values: Values, inputs: Values, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        """Compute it -> its outputs."""
        given = {name: values[name] for name in self._values}
        given |= {name: inputs[name] for name in self._inputs}
        for name, (source, (begin, end)) in self._ids.items():
            given[name] = np.clip(inputs[source] - begin, 0, end - begin - 1)
        if self._chunks is None or sizes[self._chunks.dim] <= ROWS:
            launch = self._plan.launch(given, sizes)
            launch.wait()
            return {name: Rows(launch, name, sizes[dim] * size) for name, dim, size in self._outputs}
        for graph, plan in self._stages:
            given |= self._in_chunks(self._chunks, graph, plan, given, sizes)
        return {name: Rows(None, name, given[name].nbytes, given[name]) for name, _, _ in self._outputs}

    def _in_chunks(
        self, chunks: Chunks, graph: Graph, plan: Plan, given: Values, sizes: Mapping[str, int]
    ) -> Values:
        """Compute a stage -> its outputs, of all rows."""
        count = sizes[chunks.dim]
        cut = {name: chunks.is_cut(graph, name) for name in graph.inputs}
        found: Values = {}
        for begin in range(0, count, ROWS):
            rows = slice(begin, min(begin + ROWS, count))
            inputs = {name: given[name][rows] if is_cut else given[name] for name, is_cut in cut.items()}
            launch = plan.launch(inputs, {**sizes, chunks.dim: rows.stop - begin})
            launch.wait()
            for name in graph.outputs:
                part = _flat(launch.rows(name))
                if name not in found:
                    found[name] = np.empty((count, part.shape[1]), np.float32)
                found[name][rows] = part
        return found


class _ReadingAhead:
    """What a member does while a piece waits for values: it reads weights of that and of the next pieces."""

    def __init__(self, plans: Sequence[ReadsAhead | None], first: int) -> None:
        """`plans`: those of all pieces; `first`: the number of the piece that waits."""
        self._plans = plans
        self._first = first

    def __call__(self, descriptor: int) -> None:
        left: int | None = None
        for plan in islice(self._plans, self._first, None):
            if plan is None:
                continue
            if left is None:
                left = plan.bytes_to_read_ahead
            read = plan.read_ahead(descriptor, left)
            if read is None or read >= left:
                break
            left -= read


class MemberPlan:
    """The pieces of a graph that the member `own` computes. `results` are values that may be asked for.

    `bytes` is what values between pieces take at most, besides the memory of the backend.
    """

    def __init__(
        self, backend: Backend, pieces: Sequence[Piece], results: Sequence[str], own: int, exchange: Exchange
    ) -> None:
        self._own = own
        self._exchange = exchange
        self._results = frozenset(results)
        self._pieces: list[tuple[Piece, _PiecePlan | None]] = [
            (piece, _PiecePlan(backend, piece) if piece.graph.nodes else None) for piece in pieces
        ]
        plans = [None if plan is None else plan.reads_ahead for _, plan in self._pieces]
        self._reading_ahead = [_ReadingAhead(plans, index) for index in range(len(plans))]
        self._read = {name for piece in pieces for name in _read_by(piece)}
        self._unread = _read_last(pieces)
        self.bytes = _most_bytes(pieces, self._unread)

    def run(self, run: int, inputs: Values, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        """Compute all pieces -> the results.

        Raises ClusterError where another member fails, and what computing a piece raises.
        """
        self._exchange.begin(run)
        values: Values = {}
        results: dict[str, Rows] = {}
        for (piece, plan), unread, ahead in zip(self._pieces, self._unread, self._reading_ahead, strict=True):
            for gather in piece.gathers:
                values[gather.value] = (
                    self._gathered(gather, values, inputs, ahead)
                    if sizes[gather.leading]
                    else np.zeros((0, gather.width), np.float32)
                )
            if plan is not None:
                for name, rows in plan.run(values, inputs, sizes).items():
                    if name in self._read:
                        values[name] = rows.fetch()
                    if name in self._results:
                        results[name] = rows
            for send in piece.sends:
                if not sizes[send.leading]:
                    continue
                array = values[send.value]
                if send.owned is not None:
                    array = array[_own_rows(inputs[send.owned.ids], send.owned.cuts[self._own])]
                sent = RoundedRows.of(array, send.block) if send.block else array
                for target in send.targets:
                    self._exchange.send(target, send.number, sent)
            for name in unread:
                values.pop(name, None)
        return results

    def _gathered(
        self, gather: Gather, values: Values, inputs: Values, meanwhile: Meanwhile
    ) -> npt.NDArray[Any]:
        parts = [
            values[gather.part]
            if source == self._own
            else self._exchange.take(source, gather.number, meanwhile)
            for source in gather.sources
        ]
        if gather.owned is not None:
            return self._by_owner(parts, inputs[gather.owned.ids], gather.owned)
        return joined(parts, gather.groups)

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


def _extent(node: Tensor) -> tuple[str, int]:
    """The name of a node's leading dimension, and the bytes of one of its rows."""
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    return leading.name, 4 * math.prod(size for size in node.shape[1:] if isinstance(size, int))


def _read_by(piece: Piece) -> Sequence[str]:
    """The values that a piece reads, and those that it sends."""
    parts = (gather.part for gather in piece.gathers)
    return [*piece.values, *parts, *(send.value for send in piece.sends)]


def _read_last(pieces: Sequence[Piece]) -> Sequence[Sequence[str]]:
    """The values that each piece is the last one to read."""
    last: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        last |= dict.fromkeys([*_read_by(piece), *piece.graph.outputs], index)
    return [[name for name, at in last.items() if at == index] for index in range(len(pieces))]


def _most_bytes(pieces: Sequence[Piece], unread: Sequence[Sequence[str]]) -> int:
    """The bytes of values that are there at the same time, in the largest batch."""
    most = 0
    alive: dict[str, int] = {}
    for piece, dropped in zip(pieces, unread, strict=True):
        made = {name: piece.graph.inputs[name] for name in piece.values} | piece.graph.outputs
        for name, node in made.items():
            sizes = (size.maximum if isinstance(size, Dim) else size for size in node.shape)
            alive[name] = 4 * math.prod(sizes)
        most = max(most, sum(alive.values()))
        for name in dropped:
            alive.pop(name, None)
    return most


def _own_rows(ids: npt.NDArray[Any], cut: Cut) -> npt.NDArray[np.bool_]:
    begin, end = cut
    rows: npt.NDArray[np.bool_] = (ids >= begin) & (ids < end)
    return rows


def _flat(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return rows.reshape(len(rows), -1) if len(rows) else rows.reshape(0, int(np.prod(rows.shape[1:])))
