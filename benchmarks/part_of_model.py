"""A model that is cut for several nodes, of which only one runs and computes its pieces.

Values from other nodes are random and available immediately. So the times are those of one node alone.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import TensorInfo
from chaski.kvcache import CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import Backend
from chaski.ml.backend import CacheConfig
from chaski.ml.free_nodes import FreeNodes
from chaski.ml.graph import Dim, DType, Graph, KVBuffer, KVRole, Tensor, Weight
from chaski.ml.plan import Input
from chaski.ml.rounding import Rounding, product_types
from chaski.ml.sharded.chunks import ROWS
from chaski.ml.sharded.exchange import Exchange, Meanwhile
from chaski.ml.sharded.layers import LayerSplit
from chaski.ml.sharded.member_plan import MemberPlan
from chaski.ml.sharded.pieces import Piece, cut_graph
from chaski.ml.sharded.placement import HeldBuffer, Splitting
from chaski.ml.sharded.rounding import RoundedRows
from chaski.ml.sharded.rows import RowSplit, without_first_outputs
from chaski.model.file_dialects import open_model
from chaski.model.program import Program
from chaski.model.registry import build_model
from chaski.model.weights import place_weights

__all__ = ["CutModel", "measure_pieces"]

_SEQUENCES, _CONTEXT, _BATCH = 8, 512, 512


class CutModel:
    """The pieces of all members, and the bytes of their weights. It reads no tensor of the file."""

    def __init__(
        self, path: Path, split: str, members: int, inner: Backend | None = None, silence: int | None = None
    ) -> None:
        """`inner`: the backend of the first member; without it, no member computes.

        `silence`: a descriptor that is never readable. With it, weights are read ahead during waits for
        values.
        """
        self._backend = _Cut(split, members, inner, silence)
        # A model asks a backend for this before loading; a cut model is never loaded.
        backend = cast("Backend", self._backend)
        file = open_model(path)
        network = build_model(file)
        network.context = _CONTEXT
        place_weights(network, file, backend)
        size = CacheSize(_SEQUENCES, _CONTEXT, _BATCH)
        cache = build_cache(backend, network.layer_kinds(), size, KVTypes(DType.I16, DType.I16))
        self.program = Program(network, cache, backend, _BATCH, max_outputs=16, max_top_logits=128)

    @property
    def pieces(self) -> Sequence[Sequence[Piece]]:
        return self._backend.pieces

    @property
    def weights(self) -> Mapping[Weight, int]:
        return self._backend.weights

    def timed(self, sequence: int, first: int, tokens: int) -> Sequence[float]:
        """Compute tokens of a sequence as the first member; return the seconds of its pieces."""
        numbers = np.arange(tokens, dtype=np.int32)
        sequences = np.full(tokens, sequence, np.int32)
        batch = Batch(numbers, first + numbers, sequences, np.array([tokens - 1], np.int32))
        self.program.launch(self.program.prepare(batch), [40])
        return self._backend.exchange.seconds()


def measure_pieces(
    path: Path, split: str, members: int, inner: Backend, tokens: int, repeat: int, waits: bool = False
) -> tuple[CutModel, Sequence[float]]:
    """Compute batches of these sizes; return the cut, and the seconds of the first member's pieces.

    They are lower quartiles, since disturbances only lengthen a run. With `waits`, values arrive after the
    maximum of weights has been read ahead.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        cut = CutModel(path, split, members, inner, ours.fileno() if waits else None)
        inner.load(lambda _: None)
        inner.wait_loaded()
        runs = []
        for run in range(repeat + 1):
            where = (0, run) if tokens == 1 else (run % _SEQUENCES, 0)
            runs.append(cut.timed(*where, tokens))
    return cut, np.quantile(np.array(runs[1:]), 0.25, axis=0).tolist()


class _Instant(Exchange):
    """Other members that have already sent all values. It records the start and end of each piece."""

    def __init__(self, silence: int | None) -> None:
        super().__init__()
        self._silence = silence
        self._shapes: Mapping[tuple[int, int], tuple[str | None, int]] = {}
        self._sizes: Mapping[str, int] = {}
        self._known: dict[tuple[int, int, int], npt.NDArray[np.float32]] = {}
        # The first piece that reads a value, by the value's member and number.
        self._readers: dict[tuple[int, int], int] = {}
        self._num_pieces = 0
        self._seconds: list[float] = []
        self._piece = 0
        self._since = 0.0

    def expect(self, pieces: Sequence[Sequence[Piece]]) -> None:
        """Note the rows that members send, and their width."""
        found: dict[tuple[int, int], tuple[str | None, int]] = {}
        for member, some in enumerate(pieces):
            made: dict[str, Tensor] = {}
            for piece in some:
                made |= piece.graph.outputs
                for send in piece.sends:
                    leading, *sizes = made[send.value].shape
                    assert isinstance(leading, Dim)
                    # All ids of a table's rows are in the first member's part.
                    rows = None if send.owned is not None else leading.name
                    found[member, send.number] = rows, int(np.prod(cast("list[int]", sizes)))
        self._shapes = found
        self._num_pieces = len(pieces[0])
        for index, piece in enumerate(pieces[0]):
            for gather in piece.gathers:
                self._readers |= {(source, gather.number): index for source in gather.sources}

    def start(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._seconds = [0.0] * self._num_pieces
        self._piece, self._since = 0, time.perf_counter()

    def stop(self) -> None:
        self._pass_to(self._piece)

    def seconds(self) -> Sequence[float]:
        """Return the seconds of each piece of the last run."""
        return self._seconds

    def begin(self, run: int, has_many_rows: bool = False) -> None:
        """Do nothing, since no value comes from other members."""

    def send(self, member: int, value: int, part: int, rows: npt.NDArray[np.float32] | RoundedRows) -> None:
        """Do nothing, since no member reads it."""

    def take(self, member: int, value: int, part: int, meanwhile: Meanwhile) -> npt.NDArray[np.float32]:
        name, width = self._shapes[member, value]
        rows = 0 if name is None else min(ROWS, self._sizes[name] - ROWS * part)
        if (member, value, rows) not in self._known:
            random = np.random.default_rng(value)
            self._known[member, value, rows] = random.standard_normal((rows, width), np.float32)
        self._pass_to(max(self._piece, self._readers[member, value]))
        if self._silence is not None:
            meanwhile(self._silence)
            self._since = time.perf_counter()
        return self._known[member, value, rows]

    def _pass_to(self, piece: int) -> None:
        """Note that the following time belongs to a piece."""
        now = time.perf_counter()
        self._seconds[self._piece] += now - self._since
        self._piece, self._since = piece, now


class _Cut:
    """The part of a backend that recording a model needs, cut for several members."""

    cache_config = CacheConfig()
    launches_ahead = False

    def __init__(self, split: str, members: int, inner: Backend | None, silence: int | None) -> None:
        self._members = members
        self._inner = inner
        is_by_rows = split == "rows"
        self._splitting: Splitting = RowSplit([1] * members) if is_by_rows else LayerSplit([1.0] * members)
        self._is_by_rows = is_by_rows
        if inner is not None:
            self.cache_config = inner.cache_config
        self.weights: dict[Weight, int] = {}
        self.pieces: Sequence[Sequence[Piece]] = []
        self.exchange = _Instant(silence)

    def place(self, weights: Sequence[tuple[Weight, TensorInfo]]) -> None:
        on_each = self._splitting.place(weights)
        for weight, _ in weights:
            weight.handle = self._splitting.held[weight]
        self.weights = {weight: info.nbytes for some in on_each for weight, info in some}
        self._types = {weight: info.type for weight, info in weights}
        if self._inner is not None:
            self._inner.place(on_each[0])

    def kv_buffer(
        self, role: KVRole, cells: int, heads: int, size: int, dtype: DType, layer: int | None = None
    ) -> KVBuffer:
        on_each = self._splitting.heads(role, heads, layer)
        buffers = [KVBuffer(role, cells, own, size, dtype, None) if own else None for own in on_each]
        if self._inner is not None and on_each[0]:
            buffers[0] = self._inner.kv_buffer(role, cells, on_each[0], size, dtype, layer)
        return KVBuffer(role, cells, heads, size, dtype, HeldBuffer(buffers, on_each[0] not in (0, heads)))

    def cell_rows(self, buffers: Sequence[KVBuffer]) -> None:
        """Do nothing, since no member keeps cells."""

    def compile(self, graph: Graph) -> _Plan:
        if self._is_by_rows:
            graph = without_first_outputs(graph)
        free = FreeNodes()
        placed = self._splitting.place_nodes(graph, free)
        type_of = self._types.__getitem__
        blocks = Rounding(graph, type_of).blocks()
        self.pieces, results = cut_graph(
            graph, placed, self._splitting.held, free, self._splitting.units, blocks
        )
        if self._inner is None:
            return _Plan(graph, None, self.exchange)
        for piece in self.pieces[0]:
            piece.graph.product_types = product_types(graph, type_of)
        self.exchange.expect(self.pieces)
        values = [result.value for result in results.values() if 0 in result.members]
        own = MemberPlan(self._inner, self.pieces[0], values, 0, self.exchange)
        return _Plan(graph, own, self.exchange)


class _Plan:
    def __init__(self, graph: Graph, plan: MemberPlan | None, exchange: _Instant) -> None:
        self._inputs = graph.inputs
        self._plan = plan
        self._exchange = exchange
        self._run = 0

    def launch(self, inputs: Mapping[str, Input], sizes: Mapping[str, int] | None = None) -> Any:
        assert self._plan is not None, "a cut without a backend computes nothing"
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        found = {cast("Dim", self._inputs[name].shape[0]).name: len(array) for name, array in arrays.items()}
        found |= sizes or {}
        self._run += 1
        self._exchange.start(found)
        self._plan.run(self._run, arrays, found)
        self._exchange.stop()
