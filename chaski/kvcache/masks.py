"""The forms of masks that backends may ask for. Caches themselves work with spans, as chaski's backends do.

Dense masks and masks by pages are for other backends, see `chaski.ml.backend.CacheConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml.backend import CacheConfig, MaskForm
from chaski.ml.graph import AnyMask, DenseMask, Dim, DType, Graph, Mask, PagedMask

__all__ = ["MaskInputs", "dense_mask", "paged_mask"]

I32 = npt.NDArray[np.int32]


class MaskInputs(Struct, frozen=True):
    """The inputs of a graph that define which of `num_cells` cells each token sees.

    A batch has up to `max_sequences` sequences, and a token sees up to `max_length` positions.
    """

    config: CacheConfig
    num_cells: int
    max_sequences: int
    max_length: int

    def declare(self, graph: Graph, tokens: Dim, max_history: int, prefix: str = "") -> AnyMask:
        """Declare the inputs. `max_history`: cells that spans list at most."""
        form = self.config.mask
        if form is MaskForm.SPANS:
            history = Dim(f"{prefix}history", max_history)
            return Mask(
                graph.input(history.name, (history,), DType.I32),
                graph.input(f"{prefix}spans", (tokens, 3), DType.I32),
            )
        if form is MaskForm.PAGED:
            sequences = Dim(f"{prefix}sequences", self.max_sequences)
            return PagedMask(
                graph.input(f"{prefix}block_table", (sequences, self._num_blocks), DType.I32),
                graph.input(f"{prefix}lengths", (sequences,), DType.I32),
                graph.input(f"{prefix}query_starts", (sequences,), DType.I32),
                graph.input(f"{prefix}bounds", (tokens, 2), DType.I32),
                self.config.page,
            )
        return DenseMask(graph.input(f"{prefix}mask", (tokens, self.num_cells), DType[form.name]))

    def values(self, history: I32, spans: I32, sequences: I32) -> Mapping[str, npt.NDArray[Any]]:
        """Values for them, without prefix, from the cells listed and the span and sequence of each token."""
        form = self.config.mask
        if form is MaskForm.SPANS:
            return {"history": history, "spans": spans}
        if form is MaskForm.PAGED:
            return paged_mask(history, spans, sequences, self.config.page, self._num_blocks)
        return {"mask": dense_mask(history, spans, self.num_cells)}

    @property
    def _num_blocks(self) -> int:
        return -(-self.max_length // self.config.page)


def dense_mask(history: I32, spans: I32, num_cells: int) -> npt.NDArray[np.float32]:
    """`Mask` as a matrix of float32 (tokens, cells): 0 where a token sees a cell, else minus infinity."""
    lengths = spans[:, 1] - spans[:, 0]
    tokens = np.repeat(np.arange(len(spans)), lengths)
    # Distance of each visible entry of the history from the beginning of its token's span.
    steps = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    matrix = np.full((len(spans), num_cells), -np.inf, np.float32)
    matrix[tokens, history[spans[tokens, 0] + steps]] = 0
    return matrix


def paged_mask(history: I32, spans: I32, sequences: I32, page: int, num_blocks: int) -> dict[str, I32]:
    """The inputs of a `PagedMask` for the same. The tokens of a sequence follow each other in the batch."""
    begins, ends, first = spans.T
    offsets = begins - first
    starts = np.flatnonzero(np.diff(sequences, prepend=-1)).astype(np.int32)
    assert len(set(sequences[starts].tolist())) == len(starts), "the tokens of a sequence are not together"
    bounds = np.stack([first, ends - offsets], axis=1).astype(np.int32)
    lengths = np.maximum.reduceat(bounds[:, 1], starts) if len(starts) else starts
    table = np.zeros((len(starts), num_blocks), np.int32)
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        stop = starts[row + 1] if row + 1 < len(starts) else len(spans)
        positions = np.arange(bounds[start:stop, 0].min(initial=length), length)
        cells = history[positions + offsets[start]]
        assert (cells % page == positions % page).all(), "a token is not at its place of a page"
        table[row, positions // page] = cells // page
    return {"block_table": table, "lengths": lengths, "query_starts": starts, "bounds": bounds}
