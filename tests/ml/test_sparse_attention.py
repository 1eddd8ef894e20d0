"""Sparse attention: which keys an indexer chooses, and attention to them, with the same bits however cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski import _native
from chaski.errors import UnsupportedError
from chaski.ml import BackendOptions, CPUOptions, Options, open_backend, ops
from chaski.ml.graph import DenseMask, Dim, DType, Graph, KVRole, Mask
from tests.backends import about_the_processor

from .both_backends import bound

pytestmark = about_the_processor

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
COUNT = 300
IMPLEMENTATIONS = [
    ("reference", ()),
    *(
        ("cpu", (BackendOptions(flash_attention=flash), CPUOptions(threads=2, isa=isa)))
        for isa in _native.isa_names()
        for flash in (True, False)
    ),
]


class Sparse:
    """Stores keys (n, size) of an indexer, and attends to those that it chooses for rows of q and weights.

    All scores of attention are equal, and values are rows of the unit matrix: the result of a token has
    1 / count at the positions of its chosen keys. With `values`, scores differ.
    """

    def __init__(
        self,
        folder: Path,
        backend: str,
        q: F32,
        weights: F32 | None,
        keys: F32,
        cells: I32,
        *,
        count: int,
        block: int = 1,
        local: int = 0,
        options: Sequence[Options],
        type: DType = DType.F32,
        values: F32 | None = None,
    ) -> None:
        opened = open_backend(backend, *options)
        (tokens, heads, size), stored = q.shape, len(keys)
        values = np.eye(stored, dtype=np.float32) if values is None else values
        arrays = {"q": q.reshape(tokens, -1), "keys": keys, "values": values}
        arrays |= {} if weights is None else {"weights": weights}
        arrays["seen"] = np.zeros((stored, 32), np.float32) if values.shape[1] == stored else keys[:, :32]
        held = bound(opened, folder, {name: np.ascontiguousarray(array) for name, array in arrays.items()})
        buffers = {
            name: opened.kv_buffer(
                role, 1024, 1, arrays[name].shape[1], type if name == "keys" else DType.F32
            )
            for name, role in (("keys", KVRole.KEYS), ("seen", KVRole.KEYS), ("values", KVRole.VALUES))
        }
        graph = Graph()
        ids = graph.input("ids", (Dim("stored", stored),), DType.I32)
        where = graph.input("where", ids.shape, DType.I32)
        rows = graph.input("rows", (Dim("tokens", tokens),), DType.I32)
        history = graph.input("history", (Dim("history", 2 * stored),), DType.I32)
        spans = graph.input("spans", (rows.shape[0], 3), DType.I32)
        index, seen, read = (
            ops.store(ops.embedding(ids, held[name]).reshape(1, arrays[name].shape[1]), where, buffer)
            for name, buffer in buffers.items()
        )
        queries = ops.embedding(rows, held["q"]).reshape(heads, size)
        factors = None if weights is None else ops.embedding(rows, held["weights"])
        mask, choice = Mask(history, spans), {"count": count, "block": block, "local": local}
        chosen = ops.choose_cells(queries, factors, index, mask, scale=0.5, **choice)
        asked = ops.slice(queries, 0, 32)
        y = ops.attention(asked, seen, read, chosen, 1.0)
        graph.output("y", y.reshape(heads * values.shape[1]))
        self._plan, self._cells, self._heads = opened.compile(graph), cells, heads
        self._run(np.arange(stored), [], np.zeros((0, 3), np.int32), cells[:0])

    def attend(self, rows: npt.ArrayLike, spans: npt.ArrayLike, cells: I32 | None = None) -> F32:
        return self._run(np.zeros(0, np.int32), rows, spans, self._cells if cells is None else cells)

    def _run(self, ids: npt.ArrayLike, rows: npt.ArrayLike, spans: npt.ArrayLike, cells: I32) -> F32:
        ids, rows = np.asarray(ids, np.int32), np.asarray(rows, np.int32)
        inputs = {"ids": ids, "where": self._cells[ids], "rows": rows, "history": cells}
        found = self._plan.launch(inputs | {"spans": np.asarray(spans, np.int32)}).rows("y").copy()
        return found.reshape(len(rows), self._heads, found.shape[1] // self._heads)


def whole(*shape: int, seed: int) -> F32:
    """Return small whole numbers: scores are exact, and many are equal."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def normal(*shape: int, seed: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def best(q: F32, weights: F32, keys: F32, count: int, block: int = 1) -> list[int]:
    """Return the positions of the blocks with the highest scores, of equal ones the first, and the rest."""
    blocks = len(keys) // block
    scores = weights @ np.maximum(q @ keys[block - 1 : blocks * block : block].T * 0.5, 0)
    chosen = sorted(range(blocks), key=lambda place: (-scores[place], place))[:count]
    rest = range(blocks * block, len(keys))
    return [*(place * block + i for place in sorted(chosen) for i in range(block)), *rest]


@pytest.mark.parametrize(("backend", "options"), IMPLEMENTATIONS)
@pytest.mark.parametrize("type", [DType.F32, DType.F16])
def test_the_highest_scores_are_chosen_and_of_equal_ones_the_lowest_positions(
    tmp_path: Path, backend: str, options: Sequence[Options], type: DType
) -> None:
    tokens, stored, count = 3, 90, 11
    q, weights, keys = whole(tokens, 4, 32, seed=1), whole(tokens, 4, seed=2), whole(stored, 32, seed=3)
    cells = np.random.default_rng(4).permutation(stored).astype(np.int32)
    sparse = Sparse(tmp_path, backend, q, weights, keys, cells, count=count, options=options, type=type)
    lengths = (stored, count, 5)
    found = sparse.attend(range(tokens), [(0, length, 0) for length in lengths])
    for token, length in enumerate(lengths):
        chosen = best(q[token], weights[token], keys[:length], count)
        assert len(chosen) == min(count, length)
        for head in found[token]:
            assert np.flatnonzero(head).tolist() == chosen
            np.testing.assert_allclose(head[chosen], 1 / len(chosen), rtol=1e-6)


@pytest.mark.parametrize(("backend", "options"), IMPLEMENTATIONS)
def test_blocks_are_chosen_by_the_key_of_their_last_position(
    tmp_path: Path, backend: str, options: Sequence[Options]
) -> None:
    stored, block = 67, 4
    q, weights, keys = whole(1, 4, 32, seed=1), np.ones((1, 4), np.float32), whole(stored, 32, seed=3)
    cells = np.random.default_rng(4).permutation(stored).astype(np.int32)
    sparse = Sparse(tmp_path, backend, q, None, keys, cells, count=5, block=block, options=options)
    for length in (stored, 64, 23, 20, 3):
        found = sparse.attend([0], [(0, length, 0)])[0]
        chosen = best(q[0], weights[0], keys[:length], 5, block)
        for head in found:
            assert np.flatnonzero(head).tolist() == chosen
            np.testing.assert_allclose(head[chosen], 1 / len(chosen), rtol=1e-6)


def best_with_local(q: F32, keys: F32, count: int, block: int, local: int) -> list[int]:
    """Return the positions of the chosen blocks, of which the last `local` are the first."""
    scores = (q @ keys.T * 0.5).sum(axis=0)
    starts = range(0, len(keys), block)
    ranked = sorted(starts, key=lambda start: (-scores[start : start + block].max(), start))
    first = list(starts)[-local:]
    chosen = [*first, *(start for start in ranked if start not in first)][:count]
    return [place for start in sorted(chosen) for place in range(start, min(start + block, len(keys)))]


@pytest.mark.parametrize(("backend", "options"), IMPLEMENTATIONS)
@pytest.mark.parametrize("local", [1, 3])
def test_blocks_have_the_highest_score_of_their_positions_where_the_last_are_chosen(
    tmp_path: Path, backend: str, options: Sequence[Options], local: int
) -> None:
    """Scores below 0 count as they are, and the last block may have fewer positions."""
    stored, block, count = 67, 4, 5
    q, keys = whole(1, 4, 32, seed=1), whole(stored, 32, seed=3)
    keys[:30] = -np.abs(keys[:30]) * np.sign(q[0].sum(axis=0))
    cells = np.random.default_rng(4).permutation(stored).astype(np.int32)
    sparse = Sparse(
        *(tmp_path, backend, q, None, keys, cells), count=count, block=block, local=local, options=options
    )
    for length in (stored, 64, 33, 23, 20, 3):
        found = sparse.attend([0], [(0, length, 0)])[0]
        chosen = best_with_local(q[0], keys[:length], count, block, local)
        for head in found:
            assert np.flatnonzero(head).tolist() == chosen
            np.testing.assert_allclose(head[chosen], 1 / len(chosen), rtol=1e-6)


@pytest.mark.parametrize(("backend", "options"), IMPLEMENTATIONS)
def test_a_score_that_is_no_number_is_chosen_last(
    tmp_path: Path, backend: str, options: Sequence[Options]
) -> None:
    q, keys = np.zeros((1, 2, 32), np.float32), np.zeros((9, 32), np.float32)
    q[..., 0], keys[1::2, 0] = 3e38, 100
    weights = np.zeros((1, 2), np.float32)  # which multiply infinity for every second key
    cells = np.arange(9, dtype=np.int32)
    with np.errstate(all="ignore"):
        sparse = Sparse(tmp_path, backend, q, weights, keys, cells, count=6, options=options)
        found = sparse.attend([0], [(0, 9, 0)])[0, 0]
    assert np.flatnonzero(found).tolist() == [0, 1, 2, 4, 6, 8]


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("type", [DType.F32, DType.BF16, DType.I16, DType.Q8_0, DType.Q4_0, DType.Q3_0])
@pytest.mark.parametrize(("count", "block", "local"), [(COUNT, 1, 0), (11, 2, 0), (12, 3, 2)])
def test_the_bits_do_not_depend_on_threads_other_tokens_and_cells(
    tmp_path: Path, isa: str, type: DType, count: int, block: int, local: int
) -> None:
    """One token of many threads is split into chunks, and many tokens are not."""
    tokens, stored = 40, 700
    q, weights, keys = normal(tokens, 4, 64, seed=1), normal(tokens, 4, seed=2), normal(stored, 64, seed=3)
    values = normal(stored, 48, seed=4)
    spans = [(0, stored - tokens + token + 1, 0) for token in range(tokens)]
    found: list[F32] = []
    for threads, order in ((1, np.arange(stored)), (3, np.random.default_rng(5).permutation(stored))):
        cells = order.astype(np.int32)
        options = [CPUOptions(threads=threads, isa=isa)]
        sparse = Sparse(
            *(tmp_path, "cpu", q, weights, keys, cells),
            count=count,
            block=block,
            local=local,
            options=options,
            type=type,
            values=values,
        )
        found.append(sparse.attend(range(tokens), spans))
        some = [0, 17, 39]
        found.append(sparse.attend(some, [spans[token] for token in some]))
        listed = np.concatenate([cells[:30], cells])  # another sequence comes first in the list
        shifted = [(begin + 30, end + 30, first) for begin, end, first in spans[-1:]]
        found.append(sparse.attend([39], shifted, listed))
    for all_tokens, three, one in (found[:3], found[3:]):
        np.testing.assert_array_equal(all_tokens, found[0])
        np.testing.assert_array_equal(three, found[0][[0, 17, 39]])
        np.testing.assert_array_equal(one, found[0][39:])


def test_a_mask_in_another_form_is_refused() -> None:
    graph = Graph()
    rows = Dim("tokens", 4)
    q = graph.input("q", (rows, 2, 32), DType.F32)
    keys = graph.input("keys", (8, 1, 32), DType.F32)
    mask = DenseMask(graph.input("mask", (rows, 8), DType.F32))
    with pytest.raises(UnsupportedError, match="sparse attention: load the model with another backend"):
        ops.choose_cells(q, graph.input("weights", (rows, 2), DType.F32), keys, mask, count=4, scale=1.0)
