"""A model compiled for batches: recorded once, reserved for the largest batch, replayed for every one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.kvcache import Cache, Encoder
from chaski.kvcache.batch import Batch
from chaski.ml import ops
from chaski.ml.backend import Backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.ml.plan import Launch
from chaski.model.attached import AttachedDraft
from chaski.model.input import HiddenStates, ImageRows, Inputs
from chaski.model.output_rows import HIDDEN, OutputRows
from chaski.model.registry import Model, tells_types, vision_of

__all__ = ["Program"]

_NO_PLACES = np.zeros(0, np.int32)


class Program:
    """One plan of `model` for up to `max_tokens` tokens, of which `max_outputs` have outputs.

    Where these are logits, the plan also finds up to `max_top_logits` top logits of each row.
    `has_coordinates`: tokens are turned by coordinates, which a batch has where it has images.
    `draft` stores with each batch what it proposes from; its caches are behind those of the model.
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
        self._cache = cache
        graph = Graph()
        tokens, outputs = Dim("tokens", max_tokens), Dim("outputs", max_outputs)
        vision = vision_of(model)
        takes_rows = vision is not None and not any(isinstance(k, Encoder) for k in model.layer_kinds())
        self._row_size = vision.shape.row_size if vision is not None and takes_rows else None
        self.takes_types = tells_types(model)
        self._no_rows = np.zeros((0, self._row_size or 0), np.float32)
        self.has_coordinates = vision is not None and vision.shape.has_grid
        inputs = Inputs(
            tokens=graph.input("tokens", (tokens,), DType.I32),
            positions=graph.input("positions", (tokens,), DType.I32),
            outputs=graph.input("outputs", (outputs,), DType.I32),
            types=graph.input("types", (tokens,), DType.I32) if self.takes_types else None,
            images=None if self._row_size is None else _images(graph, max_tokens, self._row_size),
            coordinates=graph.input("coordinates", (tokens, 3), DType.I32) if self.has_coordinates else None,
            hidden=None if draft is None else HiddenStates(draft.hidden_layers),
        )
        found = _record(model, inputs, cache.record(graph, tokens), draft)
        self._width = math.prod(size for size in found.shape[1:] if isinstance(size, int))
        graph.output("outputs", found)
        if max_top_logits:
            counts = graph.input("num_top_logits", (outputs,), DType.I32)
            graph.output("top_logits", ops.top_k(found, counts, max_top_logits))
        self._plan = backend.compile(graph)
        self._launched: Launch | None = None
        self._num_outputs = 0

    def prepare(self, batch: Batch) -> Mapping[str, npt.NDArray[Any]]:
        """Make room for a batch in the cache -> what `launch` needs. The plan may compute another one.

        Until then its tokens and rows may be written. Raises CacheFullError, and changes nothing.
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
        if self.has_coordinates:
            found = batch.coordinates
            values["coordinates"] = np.repeat(batch.positions[:, None], 3, 1) if found is None else found
        return values

    def launch(self, values: Mapping[str, npt.NDArray[Any]], num_top_logits: Sequence[int] = ()) -> None:
        """Begin to compute the batch that was prepared last.

        `num_top_logits`: for each output the number of top logits that `top_logits` returns; none if empty.
        """
        if self.max_top_logits:
            counts = np.array(num_top_logits or [0] * len(values["outputs"]), np.int32)
            values = {**values, "num_top_logits": counts}
        self._num_outputs = len(values["outputs"])
        self._launched = None  # so that nobody keeps its results
        self._launched = self._plan.launch(values)

    def wait(self) -> None:
        """Compute the batch that was launched to its end."""
        if self._launched is not None:
            self._launched.wait()

    def outputs(self) -> OutputRows:
        """The outputs of that batch, len(batch.outputs) rows: each is fetched when it is read."""
        assert self._launched is not None, "nothing was launched"
        return OutputRows(self._launched, 0, self._num_outputs, self._width)

    def top_logits(self) -> npt.NDArray[np.float32]:
        """The top logits and their ids of that batch (len(batch.outputs), 2, max_top_logits): a view.

        They are in descending order, equal ones by id. Elements behind the number that was asked for have no
        meaning.
        """
        if not self.max_top_logits:
            return np.zeros((self._num_outputs, 2, 0), np.float32)
        assert self._launched is not None, "nothing was launched"
        return self._launched.rows("top_logits").reshape(-1, 2, self.max_top_logits)

    def forward(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Compute a batch and update the cache: all of the above."""
        self.launch(self.prepare(batch))
        self.wait()
        return self.outputs().fetch()


def _record(model: Model, inputs: Inputs, caches: Sequence[Any], draft: AttachedDraft | None) -> Tensor:
    """Record a forward pass -> its outputs, and behind it what an attached draft stores."""
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
