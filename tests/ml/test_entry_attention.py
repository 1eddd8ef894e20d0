"""Attention to a window of tokens and to the entries of groups of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import UnsupportedError
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import DenseMask, Dim, DType, Graph, KVRole, Mask
from tests.backends import FORMS

F32 = npt.NDArray[np.float32]
PLACES = [("reference", "auto"), *FORMS]
LENGTH, HEADS, SIZE, BLOCK, WINDOW = 1300, 20, 32, 4, 300
RANDOM = np.random.default_rng(5)
Q, KEYS, ENTRIES, INDEX = (
    RANDOM.standard_normal((LENGTH, count, SIZE)).astype(np.float32) for count in (HEADS, 1, 1, 1)
)
WEIGHTS = RANDOM.standard_normal((LENGTH, HEADS)).astype(np.float32)
CELLS = RANDOM.permutation(1400)[:LENGTH].astype(np.int32)


class Attending:
    """Stores all tokens first. With `count`, an indexer chooses so many entries."""

    def __init__(self, place: tuple[str, str], count: int, threads: int, type: DType = DType.F32) -> None:
        backend = open_backend(place[0], CPUOptions(threads=threads, isa=place[1]))
        graph, tokens = Graph(), Dim("tokens", LENGTH)
        given = {
            name: graph.input(name, (tokens, rows.shape[1] * SIZE), DType.F32).reshape(rows.shape[1], SIZE)
            for name, rows in {"q": Q, "keys": KEYS, "entries": ENTRIES, "index": INDEX}.items()
        }
        weights = graph.input("weights", (tokens, HEADS), DType.F32)
        cells = graph.input("cells", (tokens,), DType.I32)
        history = graph.input("history", (Dim("history", LENGTH),), DType.I32)
        near, far = (graph.input(name, (tokens, 3), DType.I32) for name in ("near", "far"))
        buffers = {
            name: backend.kv_buffer(KVRole.KEYS, 1400, 1, SIZE, type) for name in ("keys", "entries", "index")
        }
        stored = {name: ops.store(given[name], cells, buffer) for name, buffer in buffers.items()}
        seen = Mask(history, far)
        groups = (
            ops.choose_cells(given["q"], weights, stored["index"], seen, count=count, scale=1, block=BLOCK)
            if count
            else seen
        )
        keys = stored["keys"]
        window = keys, ops.stored(graph, buffers["keys"], SIZE), Mask(history, near)
        y = ops.entry_attention(
            given["q"], window, (stored["entries"], groups), length=WINDOW, block=BLOCK, scale=0.3
        )
        graph.output("y", y.reshape(HEADS * SIZE))
        self._plan = backend.compile(graph)
        backend.load(lambda _: None)
        self.at(range(LENGTH), sees=False)

    def at(self, positions: Sequence[int], sees: bool = True) -> F32:
        """Compute tokens at these positions in one batch; without `sees`, all of them see the first token."""
        at = np.array(positions)
        rows = {"q": Q, "keys": KEYS, "entries": ENTRIES, "index": INDEX}
        first, end = np.maximum(0, at - WINDOW + 1) * sees, at * sees + 1
        spans = {"near": np.stack([first, end, first], 1), "far": np.stack([0 * at, end, 0 * at], 1)}
        inputs = {name: array[at].reshape(len(at), -1) for name, array in rows.items()}
        inputs |= {name: array.astype(np.int32) for name, array in spans.items()}
        inputs |= {"weights": WEIGHTS[at], "cells": CELLS[at], "history": CELLS}
        return self._plan.launch(inputs).rows("y").copy()


def plain(position: int, count: int) -> npt.NDArray[np.float64]:
    """Return the result of a token by one softmax over its window and its entries."""
    places = [place * BLOCK + BLOCK - 1 for place in range((position + 1) // BLOCK)]
    if count:
        scores = np.maximum(Q[position] @ INDEX[places, 0].T, 0).T @ WEIGHTS[position]
        places = [places[best] for best in np.argsort(-scores, kind="stable")[:count]]
    near = range(max(0, position - WINDOW + 1), position + 1)
    rows = np.concatenate([KEYS[near, 0], ENTRIES[places, 0]]).astype(float)
    scores = Q[position] @ rows.T * 0.3
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    y: npt.NDArray[np.float64] = (weights / weights.sum(axis=1, keepdims=True) @ rows).ravel()
    return y


@pytest.mark.parametrize("count", [0, 50])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_one_softmax_over_both(place: tuple[str, str], count: int) -> None:
    positions = [0, 2, 3, 4, 299, 301, 1025, 1299]
    found = Attending(place, count, threads=2).at(positions)
    for row, position in zip(found, positions, strict=True):
        np.testing.assert_allclose(row, plain(position, count), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("type", [DType.F16, DType.I16])
@pytest.mark.parametrize("place", FORMS, ids=str)
def test_the_bits_do_not_depend_on_threads_and_other_tokens(place: tuple[str, str], type: DType) -> None:
    """Few tokens share their heads among threads."""
    positions = [7, 500, *range(1200, 1260), 1299]
    many = Attending(place, 50, threads=2, type=type).at(positions)
    alone = Attending(place, 50, threads=1, type=type)
    for row in (0, 1, 20, len(positions) - 1):
        assert (alone.at(positions[row : row + 1])[0] == many[row]).all()


def test_a_mask_in_another_form_is_refused() -> None:
    graph, tokens = Graph(), Dim("tokens", 4)
    q = graph.input("q", (tokens, 32), DType.F32).reshape(1, 32)
    keys = graph.input("keys", (Dim("cells", 8), 32), DType.F32).reshape(1, 32)
    mask = DenseMask(graph.input("mask", (tokens, 8), DType.F32))
    with pytest.raises(UnsupportedError, match="cannot attend to entries of groups"):
        ops.entry_attention(q, (keys, keys, mask), (keys, mask), length=4, block=4, scale=1)
