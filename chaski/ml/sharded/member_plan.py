"""A member's share of a plan: its pieces, which its backend computes one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.plan import Launch, Plan, ReadsAhead
from chaski.ml.sharded.chunks import ROWS, Chunks, in_chunks, row_parts
from chaski.ml.sharded.exchange import Exchange, Meanwhile
from chaski.ml.sharded.pieces import Gather, OwnedRows, Piece, Send
from chaski.ml.sharded.placement import Cut, put_joined
from chaski.ml.sharded.rounding import RoundedRows

__all__ = ["MemberPlan", "Rows"]

F32 = npt.NDArray[np.float32]
Arrays = Mapping[str, npt.NDArray[Any]]
Values = Mapping[str, "F32 | _Arriving"]
"""Values between pieces, by name. Some have not arrived yet."""

OnRows = Callable[[str, int, F32], None]
"""Called with the name of an output, the number of the first row, and the computed rows."""


class Rows:
    """A result of one run. It does not change while it is referenced."""

    def __init__(
        self, launch: Launch | None, name: str, num_bytes: int, rows: npt.NDArray[np.float32] | None = None
    ) -> None:
        """`rows`: the result itself, if it belongs to no launch."""
        self._launch = launch
        self._name = name
        self.num_bytes = num_bytes
        self._rows = rows

    def fetch(self, begin: int = 0, end: int | None = None) -> npt.NDArray[np.float32]:
        """Return rows of the result, each flat: (rows, width)."""
        if self._launch is None:
            assert self._rows is not None
            return self._rows[begin:end]
        return _flat(self._launch.rows(self._name, begin, end))


class _Arriving:
    """Rows (rows, width) of a value, float32, which arrive while members compute others.

    Reading rows joins the members' parts of them. It raises ClusterError if a part will not arrive.
    """

    def __init__(self, rows: int, width: int, groups: int, parts_of: Callable[[int, slice], Sequence[F32]]):
        """`parts_of`: waits for members' parts (n, own width), by a number and a slice of `row_parts`."""
        self._array = np.empty((rows, width), np.float32)
        self._groups = groups
        self._parts_of = parts_of
        self._coming = row_parts(rows)
        self._there = 0

    def __len__(self) -> int:
        return len(self._array)

    def rows(self, end: int) -> F32:
        """Wait for the first `end` rows and return them: (end, width)."""
        while self._there < end:
            number, rows = next(self._coming)
            put_joined(self._array[rows], self._parts_of(number, rows), self._groups)
            self._there = rows.stop
        return self._array[:end]


class _PiecePlan:
    """The plan of a piece, or the plans of its chunks."""

    def __init__(self, backend: Backend, piece: Piece, read: Collection[str]) -> None:
        """`read`: the values that pieces read or send. Other results stay where the backend computes them."""
        graph = piece.graph
        self._read = [name for name in graph.outputs if name in read]
        self._outputs = [(name, *_extent(node)) for name, node in graph.outputs.items()]
        self._values = [name for name in graph.inputs if name in piece.values]
        # Values are sent as floats, whatever they are.
        self._integers = {
            name: graph.inputs[name].shape[1:]
            for name in self._values
            if graph.inputs[name].dtype is DType.I32
        }
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
        """A plan with the weights of all stages, if it can read them ahead; else None."""
        return self._plan if isinstance(self._plan, ReadsAhead) else None

    def run(
        self, values: Values, inputs: Arrays, sizes: Mapping[str, int], on_rows: OnRows
    ) -> tuple[Mapping[str, Rows], Mapping[str, F32]]:
        """Compute the piece -> its outputs, and the rows (n, width) of the outputs that are read.

        `on_rows` receives these rows as soon as they are computed.
        """
        given: dict[str, npt.NDArray[Any] | _Arriving] = {name: values[name] for name in self._values}
        given |= {name: inputs[name] for name in self._inputs}
        for name, (source, (begin, end)) in self._ids.items():
            given[name] = np.clip(inputs[source] - begin, 0, end - begin - 1)
        if self._chunks is None or sizes[self._chunks.dim] <= ROWS:
            whole = {name: self._rows_of(name, each) for name, each in given.items()}
            launch = self._plan.launch(whole, sizes)
            launch.wait()
            outputs = {name: Rows(launch, name, sizes[dim] * size) for name, dim, size in self._outputs}
            arrays = {name: outputs[name].fetch() for name in self._read}
            for name, rows in arrays.items():
                on_rows(name, 0, rows)
            return outputs, arrays
        found: dict[str, F32] = {}
        for graph, plan in self._stages:
            found |= self._in_chunks(self._chunks, graph, plan, {**given, **found}, sizes, on_rows)
        outputs = {name: Rows(None, name, found[name].nbytes, found[name]) for name, _, _ in self._outputs}
        return outputs, {name: found[name] for name in self._read}

    def _rows_of(
        self, name: str, given: npt.NDArray[Any] | _Arriving, end: int | None = None
    ) -> npt.NDArray[Any]:
        """Return the first rows of an input in its own type and shape."""
        rows = _first_rows(given, end)
        if name not in self._integers:
            return rows
        return rows.view(np.int32).reshape(len(rows), *self._integers[name])

    def _in_chunks(
        self,
        chunks: Chunks,
        graph: Graph,
        plan: Plan,
        given: Mapping[str, npt.NDArray[Any] | _Arriving],
        sizes: Mapping[str, int],
        on_rows: OnRows,
    ) -> Mapping[str, F32]:
        """Compute a stage -> its outputs for all rows."""
        count = sizes[chunks.dim]
        cut = {name: chunks.is_cut(graph, name) for name in graph.inputs}
        found: dict[str, F32] = {}
        for _, rows in row_parts(count):
            inputs = {
                name: self._rows_of(name, given[name], rows.stop)[rows.start :]
                if is_cut
                else self._rows_of(name, given[name])
                for name, is_cut in cut.items()
            }
            launch = plan.launch(inputs, {**sizes, chunks.dim: rows.stop - rows.start})
            launch.wait()
            for name in graph.outputs:
                part = _flat(launch.rows(name))
                if name not in found:
                    found[name] = np.empty((count, part.shape[1]), np.float32)
                found[name][rows] = part
                on_rows(name, rows.start, found[name][rows])
        return found


class _ReadingAhead:
    """Reading of weights of a piece, and of later pieces, while the piece waits for values."""

    def __init__(self, plans: Sequence[ReadsAhead | None], first: int) -> None:
        """`plans`: by piece, None for one that cannot read ahead; `first`: the number of this piece."""
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
    """The pieces of a graph that the member `own` computes. `results` are the values that can be fetched.

    `bytes` is the most memory that values between pieces take, in addition to the backend's memory.
    """

    def __init__(
        self, backend: Backend, pieces: Sequence[Piece], results: Sequence[str], own: int, exchange: Exchange
    ) -> None:
        self._own = own
        self._exchange = exchange
        self._results = frozenset(results)
        read = {name for piece in pieces for name in _read_by(piece)}
        for piece in _passing(pieces, self._results):
            piece.graph.is_passing = True
        self._pieces: list[tuple[Piece, _PiecePlan | None]] = [
            (piece, _PiecePlan(backend, piece, read) if piece.graph.nodes else None) for piece in pieces
        ]
        plans = [None if plan is None else plan.reads_ahead for _, plan in self._pieces]
        self._reading_ahead = [_ReadingAhead(plans, index) for index in range(len(plans))]
        self._unread = _read_last(pieces)
        # The dimensions of rows that come from other members.
        self._dims = {gather.leading for piece in pieces for gather in piece.gathers}
        self.bytes = _most_bytes(pieces, self._unread)

    def run(self, run: int, inputs: Arrays, sizes: Mapping[str, int]) -> Mapping[str, Rows]:
        """Compute all pieces -> the results.

        Raises ClusterError if another member fails, and any error of computing a piece.
        """
        self._exchange.begin(run, max((sizes[dim] for dim in self._dims), default=0) > ROWS)
        values: dict[str, F32 | _Arriving] = {}
        results: dict[str, Rows] = {}
        for (piece, plan), unread, ahead in zip(self._pieces, self._unread, self._reading_ahead, strict=True):
            for gather in piece.gathers:
                values[gather.value] = self._gathered(gather, values, inputs, sizes[gather.leading], ahead)
            if plan is not None:
                send_rows = partial(self._send_rows, piece)
                outputs, arrays = plan.run(values, inputs, sizes, send_rows)
                values |= arrays
                results |= {name: rows for name, rows in outputs.items() if name in self._results}
            for send in piece.sends:
                if send.owned is not None and sizes[send.leading]:
                    is_own = _own_rows(inputs[send.owned.ids], send.owned.cuts[self._own])
                    self._send(send, 0, _first_rows(values[send.value])[is_own])
                elif send.value not in piece.graph.outputs:
                    self._send_rows(piece, send.value, 0, _first_rows(values[send.value]))
            for name in unread:
                values.pop(name, None)
        return results

    def _send_rows(self, piece: Piece, name: str, first: int, rows: F32) -> None:
        """Send rows of a value, in parts, to the members that wait for them.

        `first` is the number of the first row. Rows of a table that is cut are sent together after all are
        computed.
        """
        for send in piece.sends:
            if send.value == name and send.owned is None:
                for number, part in row_parts(len(rows)):
                    self._send(send, first // ROWS + number, rows[part])

    def _send(self, send: Send, part: int, rows: F32) -> None:
        sent = RoundedRows.of(rows, send.block) if send.block else rows
        for target in send.targets:
            self._exchange.send(target, send.number, part, sent)

    def _gathered(
        self, gather: Gather, values: Values, inputs: Arrays, count: int, meanwhile: Meanwhile
    ) -> F32 | _Arriving:
        """Return a value of `count` rows, which may still be arriving."""

        def parts_of(number: int, rows: slice) -> Sequence[F32]:
            return [
                _first_rows(values[gather.part])[rows]
                if source == self._own
                else self._exchange.take(source, gather.number, number, meanwhile)
                for source in gather.sources
            ]

        if gather.owned is not None and count:
            return self._by_owner(parts_of(0, slice(None)), inputs[gather.owned.ids], gather.owned)
        return _Arriving(count, gather.width, gather.groups, parts_of)

    def _by_owner(self, parts: Sequence[F32], ids: npt.NDArray[Any], owned: OwnedRows) -> F32:
        """Take each row from the member whose part of the table contains its id."""
        if sum(int(_own_rows(ids, cut).sum()) for cut in owned.cuts) < len(ids):
            raise ValueError(f"{owned.ids} has an index outside of 0 to {owned.cuts[-1][1] - 1}")
        found = np.empty((len(ids), parts[0].shape[1]), parts[0].dtype)
        for member, (part, cut) in enumerate(zip(parts, owned.cuts, strict=True)):
            own = _own_rows(ids, cut)
            found[own] = part[own] if member == self._own else part
        return found


def _first_rows(value: npt.NDArray[Any] | _Arriving, end: int | None = None) -> npt.NDArray[Any]:
    """Wait for the first rows of a value and return them; all rows without `end`."""
    return value.rows(len(value) if end is None else end) if isinstance(value, _Arriving) else value[:end]


def _extent(node: Tensor) -> tuple[str, int]:
    """Return the name of a node's leading dimension, and the bytes of one of its rows."""
    leading = node.shape[0]
    assert isinstance(leading, Dim)
    return leading.name, 4 * math.prod(size for size in node.shape[1:] if isinstance(size, int))


def _read_by(piece: Piece) -> Sequence[str]:
    """Return the values that a piece reads or sends."""
    parts = (gather.part for gather in piece.gathers)
    return [*piece.values, *parts, *(send.value for send in piece.sends)]


def _passing(pieces: Sequence[Piece], results: Collection[str]) -> Iterator[Piece]:
    """Yield the pieces that compute all rows at once for other members only."""
    kept = {*results, *(name for piece in pieces for name in piece.values)}
    kept |= {gather.part for piece in pieces for gather in piece.gathers}
    for piece in pieces:
        if kept.isdisjoint(piece.graph.outputs) and in_chunks(piece.graph) is None:
            yield piece


def _read_last(pieces: Sequence[Piece]) -> Sequence[Sequence[str]]:
    """Return, for each piece, the values that no later piece reads."""
    last: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        last |= dict.fromkeys([*_read_by(piece), *piece.graph.outputs], index)
    return [[name for name, at in last.items() if at == index] for index in range(len(pieces))]


def _most_bytes(pieces: Sequence[Piece], unread: Sequence[Sequence[str]]) -> int:
    """Return the most bytes of values that exist at the same time in the largest batch."""
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
