"""A model compiled for batches: recorded once, reserved for the largest batch, replayed for every batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.formats.adapter import MAX_RANK
from chaski.kvcache import Cache, Encoder
from chaski.kvcache.batch import Batch
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Adapters, AdapterTable, Dim, DType, Graph, Tensor, Weight
from chaski.ml.graph_digest import graph_digest
from chaski.ml.ops import NUM_CHANCES
from chaski.ml.plan import FromLaunch, Input, Launch, Plan
from chaski.model.attached import AttachedDraft
from chaski.model.input import HiddenStates, ImageRows, Inputs
from chaski.model.output_rows import HIDDEN, OutputRows
from chaski.model.registry import Model, encoding_of, tells_types

__all__ = ["MAX_USES", "Adapted", "Program", "Run"]

MAX_USES = 8
"""The most adapters that a token is computed with."""

_NO_PLACES = np.zeros(0, np.int32)


class Adapted(Struct, frozen=True, eq=False):
    """The plan of batches with adapters, the table that it reads, and the matrix numbers in that table."""

    plan: Plan
    table: AdapterTable
    numbers: Mapping[Weight, int]


class Run(Struct, frozen=True, eq=False):
    """A launched batch. Its results stay for as long as a reference to this object exists."""

    launch: Launch
    num_outputs: int
    width: int
    max_top_logits: int

    def outputs(self) -> OutputRows:
        """Return the outputs of the batch, len(batch.outputs) rows; each is fetched when it is read."""
        return OutputRows(self.launch, 0, self.num_outputs, self.width)

    def top_logits(self) -> npt.NDArray[np.float32]:
        """Return the top logits of the batch and their ids (len(batch.outputs), 2, max_top_logits): a view.

        They are in descending order, equal ones by id. Elements after the requested number are undefined.
        """
        if not self.max_top_logits:
            return np.zeros((self.num_outputs, 2, 0), np.float32)
        return self.launch.rows("top_logits").reshape(-1, 2, self.max_top_logits)

    def drop_outputs(self) -> None:
        """Fetch only top logits from now on, so that the next run need not keep the outputs."""
        self.launch.drop("outputs")

    def samples(self) -> npt.NDArray[np.float32]:
        """Return the tokens that the plan sampled, (len(batch.outputs),), if it launches ahead."""
        return self.launch.rows("samples")[:, 0]

    def with_samples(
        self, tokens: npt.NDArray[np.int32], places: Sequence[int], rows: Sequence[int]
    ) -> Input:
        """Return `tokens` with those at `places` replaced by the samples of `rows`.

        The result may still be under computation.
        """
        where = np.array(places, np.int32), np.array(rows, np.int32)
        return FromLaunch(tokens, where[0], self.launch, "samples", where[1], 0)


class Program:
    """One plan of `model` for up to `max_tokens` tokens, of which `max_outputs` have outputs.

    If the outputs are logits, the plan also finds up to `max_top_logits` top logits of each row.
    `has_coordinates`: the plan rotates tokens by coordinates, which batches with images contain.
    `draft` stores, with each batch, the states that it proposes from; its caches follow those of the model.
    """

    def __init__(
        self,
        model: Model,
        cache: Cache,
        backend: Backend,
        max_tokens: int,
        max_outputs: int,
        max_top_logits: int = 0,
        draft: AttachedDraft | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.max_outputs = max_outputs
        self.max_top_logits = max_top_logits
        self._model = model
        self._cache = cache
        self._backend = backend
        self._draft = draft
        encoding = encoding_of(model)
        takes_rows = encoding is not None and not any(isinstance(k, Encoder) for k in model.layer_kinds())
        self._row_size = encoding.shape.row_size if encoding is not None and takes_rows else None
        self.takes_types = tells_types(model)
        self._no_rows = np.zeros((0, self._row_size or 0), np.float32)
        self.has_coordinates = encoding is not None and encoding.shape.has_grid
        self.num_coordinates = 0 if encoding is None else encoding.shape.num_coordinates
        graph = Graph()
        self._width = self._record(graph, *self._dims())
        self.digest = graph_digest(graph)
        self._record_samples(graph)
        self._plan = backend.compile(graph)
        self._adapted: Adapted | None = None
        self._open: deque[Launch] = deque()  # launched batches that `wait` has not finished

    @property
    def stages(self) -> int:
        """Return the number of batches that the backend computes at the same time."""
        return self._backend.stages

    @property
    def launches_ahead(self) -> bool:
        """Return whether a batch with tokens of `Run.with_samples` can be launched at once."""
        return self._backend.launches_ahead and self.max_top_logits > 0

    def adapted(self, slots: int) -> Adapted:
        """Return the plan of batches with adapters for `slots` of them; the first call compiles it.

        Batches without adapters keep using the other plan. Raises UnsupportedError for a backend without
        adapters.
        """
        if self._adapted is None:
            weights = frozenset(weight for _, weight in self._model.weights() if len(weight.shape) == 2)
            table = self._backend.adapter_table(slots, len(weights), MAX_RANK)
            graph, (tokens, outputs) = Graph(), self._dims()
            lists = {
                tokens.name: graph.input("adapter_lists", (tokens,), DType.I32),
                outputs.name: graph.input("output_adapter_lists", (outputs,), DType.I32),
            }
            uses = graph.input(
                "adapter_uses", (Dim("adapter_uses", MAX_USES * self.max_tokens), 3), DType.I32
            )
            graph.adapters = Adapters(table, lists, uses, weights)
            self._record(graph, tokens, outputs)
            self._record_samples(graph)
            embedded = {each for node in graph.nodes if node.op == "embedding" for each in node.operands}
            numbers = {w: n for w, n in graph.adapters.numbers.items() if w not in embedded}
            self._adapted = Adapted(self._backend.compile(graph), table, numbers)
        return self._adapted

    def _dims(self) -> tuple[Dim, Dim]:
        return Dim("tokens", self.max_tokens), Dim("outputs", self.max_outputs)

    def _record(self, graph: Graph, tokens: Dim, outputs: Dim) -> int:
        """Record a forward pass; return the number of elements in a row of its outputs."""
        axes = self.num_coordinates if self.has_coordinates else 0
        inputs = Inputs(
            tokens=graph.input("tokens", (tokens,), DType.I32),
            positions=graph.input("positions", (tokens,), DType.I32),
            outputs=graph.input("outputs", (outputs,), DType.I32),
            types=graph.input("types", (tokens,), DType.I32) if self.takes_types else None,
            images=None if self._row_size is None else _images(graph, self.max_tokens, self._row_size),
            coordinates=graph.input("coordinates", (tokens, axes), DType.I32) if axes else None,
            hidden=None if self._draft is None else HiddenStates(self._draft.hidden_layers),
        )
        found = _record(self._model, inputs, self._cache.record(graph, tokens), self._draft)
        graph.output("outputs", found)
        if self.max_top_logits:
            counts = graph.input("num_top_logits", (outputs,), DType.I32)
            graph.output("top_logits", ops.top_k(found, counts, self.max_top_logits))
        return math.prod(size for size in found.shape[1:] if isinstance(size, int))

    def _record_samples(self, graph: Graph) -> None:
        """Record the choice of tokens. It is not part of the digest: no cache depends on it."""
        if self.launches_ahead:
            top = graph.outputs["top_logits"]
            chances = graph.input("chances", (top.shape[0], NUM_CHANCES), DType.I32)
            graph.output("samples", ops.sample(top, chances))

    def prepare(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        """Make room for a batch in the cache; return the inputs for `launch`.

        The plan may still be computing another batch. Until the launch, the caller may change tokens and
        rows. Raises CacheFullError, and then changes nothing.
        """
        assert 0 < len(batch.tokens) <= self.max_tokens, len(batch.tokens)
        assert len(batch.outputs) <= self.max_outputs, len(batch.outputs)
        values: dict[str, npt.NDArray[Any]] = {
            **self._cache.start_forward(batch),
            "tokens": batch.tokens,
            "positions": batch.positions,
            "outputs": batch.outputs,
        }
        if self.takes_types:
            values["types"] = batch.types if batch.types is not None else np.zeros_like(batch.tokens)
        if self._row_size is not None:
            values["image_rows"] = batch.rows if batch.rows is not None else self._no_rows
            values["places"] = batch.places if batch.places is not None else _NO_PLACES
        if batch.adapters is not None:
            values["adapter_lists"] = batch.adapters.lists
            values["output_adapter_lists"] = batch.adapters.lists[batch.outputs]
            values["adapter_uses"] = batch.adapters.uses
        if self.has_coordinates:
            found = batch.coordinates
            alike = np.repeat(batch.positions[:, None], self.num_coordinates, 1)
            values["coordinates"] = alike if found is None else found
        return values

    def launch(
        self,
        values: Mapping[str, Input],
        num_top_logits: Sequence[int] = (),
        chances: Sequence[Sequence[int]] = (),
    ) -> Run:
        """Begin to compute the batch that was prepared last, after the batches launched before it.

        `num_top_logits`: for each output, the number of top logits that `top_logits` returns; none if empty.
        `chances`: for each output, the numbers for `ops.sample`, where the plan launches ahead.
        """
        if self.max_top_logits:
            counts = np.array(num_top_logits or [0] * len(values["outputs"]), np.int32)
            values = {**values, "num_top_logits": counts}
        if self.launches_ahead:
            found = chances or [[0] * NUM_CHANCES] * len(values["outputs"])
            values = {**values, "chances": np.array(found, np.int32).reshape(-1, NUM_CHANCES)}
        plan = self._plan
        if "adapter_lists" in values:
            assert self._adapted is not None, "the adapters of the batch are in its table"
            plan = self._adapted.plan
        self._open.append(plan.launch(values))
        return Run(self._open[-1], len(values["outputs"]), self._width, self.max_top_logits)

    def wait(self, most: int = 0) -> None:
        """Wait for launched batches, the oldest first, until at most `most` are unfinished.

        Raises the first error of any batch.
        """
        failure: Exception | None = None
        while len(self._open) > most:
            try:
                self._open[0].wait()
            except Exception as error:
                failure = failure or error
            self._open.popleft()
        if failure is not None:
            raise failure

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Prepare, launch and wait for a batch; return its outputs."""
        run = self.launch(self.prepare(batch))
        self.wait()
        return run.outputs().fetch()


def _record(model: Model, inputs: Inputs, caches: Sequence[Any], draft: AttachedDraft | None) -> Tensor:
    """Record a forward pass, and after it the storage of an attached draft; return the outputs."""
    if draft is None or inputs.hidden is None:
        return model(inputs, caches)
    count = len(model.layer_kinds())
    found = model(inputs, caches[:count])
    draft.check_hidden(inputs.hidden)
    rows = draft.store(inputs, inputs.hidden, caches[count:])
    if rows is not None:
        found.graph.output(HIDDEN, rows)
    return found


def _images(graph: Graph, max_tokens: int, size: int) -> ImageRows:
    rows = Dim("image_rows", max_tokens)
    return ImageRows(
        graph.input("image_rows", (rows, size), DType.F32), graph.input("places", (rows,), DType.I32)
    )
