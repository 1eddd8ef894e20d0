"""Sparse attention on a GPU: the chosen cells, and the bits of the cpu backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chaski.ml.graph import DType
from tests.cuda.devices import BACKENDS
from tests.ml import test_sparse_attention as on_processors
from tests.ml.test_sparse_attention import Sparse, normal
from tests.tiers import long_after

on_each = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.long
@on_each
def test_choices(tmp_path: Path, backend: str) -> None:
    choose = on_processors.test_the_highest_scores_are_chosen_and_of_equal_ones_the_lowest_positions
    choose(tmp_path, backend, (), DType.F16)
    on_processors.test_blocks_are_chosen_by_the_key_of_their_last_position(tmp_path, backend, ())
    on_processors.test_a_score_that_is_no_number_is_chosen_last(tmp_path, backend, ())
    highest = on_processors.test_blocks_have_the_highest_score_of_their_positions_where_the_last_are_chosen
    for local in (1, 3):
        highest(tmp_path, backend, (), local)


@pytest.mark.long
@on_each
@pytest.mark.parametrize("type", long_after(1, [DType.I16, DType.F32, DType.Q8_0]))
@pytest.mark.parametrize(
    ("count", "block", "local", "heads"), [(300, 1, 0, 5), (11, 2, 0, 20), (12, 3, 2, 4)]
)
def test_bits(
    tmp_path: Path, backend: str, type: DType, count: int, block: int, local: int, heads: int
) -> None:
    tokens, stored = 40, 700
    q, weights = normal(tokens, heads, 64, seed=1), normal(tokens, heads, seed=2)
    keys, values = normal(stored, 64, seed=3), normal(stored, 48, seed=4)
    cells = np.random.default_rng(5).permutation(stored).astype(np.int32)
    spans = [(0, stored - tokens + token + 1, 0) for token in range(tokens)]
    spans[3] = (0, 9, 0)
    found = []
    for name in ("cpu", backend):
        sparse = Sparse(
            *(tmp_path, name, q, weights, keys, cells),
            count=count,
            block=block,
            local=local,
            options=(),
            type=type,
            values=values,
        )
        some = [0, 3, 17, 39]
        found.append(sparse.attend(range(tokens), spans))
        found.append(sparse.attend(some, [spans[token] for token in some]))
    np.testing.assert_array_equal(found[2].view(np.uint32), found[0].view(np.uint32))
    np.testing.assert_array_equal(found[3].view(np.uint32), found[1].view(np.uint32))


@on_each
def test_spans_inside_of_a_block(tmp_path: Path, backend: str) -> None:
    q, keys = normal(1, 2, 32, seed=1), normal(9, 32, seed=2)
    cells = np.arange(9, dtype=np.int32)
    sparse = Sparse(tmp_path, backend, q, None, keys, cells, count=2, block=2, options=())
    with pytest.raises(ValueError, match="starts inside of a block of 2 positions"):
        sparse.attend([0], [(0, 8, 1)])
