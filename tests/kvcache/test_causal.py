"""Rules of the causal cache, each as a table of inputs and expected results."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import CacheFullError, NotSupportedError
from chaski.kvcache import AttentionSpan
from chaski.ml.graph import Dim, Graph, Rope
from chaski.ml.reference.cached_ops import Storage
from tests.kvcache.causal import ROTATION, batch, crowd, make, tokens, visible


def test_a_token_sees_its_own_sequence_up_to_itself() -> None:
    cache = make()
    assert visible(cache, (0, 0), (0, 1), (1, 0)) == [[0], [0, 1], [8]]
    assert visible(cache, (1, 1), (0, 2)) == [[8, 9], [0, 1, 2]]


def test_sequences_may_be_mixed_in_any_order() -> None:
    cache = make()
    assert visible(cache, (1, 0), (0, 0), (1, 1)) == [[8], [0], [8, 9]]


def test_a_copied_prefix_shares_cells_and_then_goes_its_own_way() -> None:
    cache = make()
    visible(cache, (0, 0), (0, 1), (0, 2))
    cache.copy_prefix(0, 1, 2)
    visible(cache, (1, 2), (0, 3))
    assert cache.length(0) == 4
    assert cache.length(1) == 3
    mine, other = visible(cache, (0, 4), (1, 3))
    assert mine[:2] == other[:2] == [0, 1]
    assert not set(mine[2:]) & set(other[2:])


def test_a_shared_cell_is_freed_with_its_last_owner() -> None:
    cache = make(capacity=2)
    visible(cache, (0, 0), (0, 1))
    cache.copy_prefix(0, 1, 2)
    cache.remove(0, 0)
    assert visible(cache, (0, 0), (0, 1)) == [[2], [2, 3]]


def test_a_full_sequence_is_an_error_that_changes_nothing() -> None:
    cache = make(capacity=2)
    visible(cache, (0, 0), (1, 0))
    with pytest.raises(CacheFullError, match="sequence 0 holds 1 tokens and 2 more"):
        cache.start_forward(batch((1, 1), (0, 1), (0, 2)))
    assert (cache.length(0), cache.length(1)) == (1, 1)


@pytest.mark.parametrize(
    ("begin", "end", "left"),
    [
        pytest.param(1, None, [0], id="tail"),
        pytest.param(1, 6, [0], id="tail by its end"),
        pytest.param(1, 9, [0], id="beyond the end"),
        pytest.param(0, None, [], id="all"),
        pytest.param(2, 4, [0, 1, 4, 5], id="middle"),
        pytest.param(0, 4, [4, 5], id="beginning"),
        pytest.param(2, 2, [0, 1, 2, 3, 4, 5], id="nothing"),
        pytest.param(4, 2, [0, 1, 2, 3, 4, 5], id="nothing, backwards"),
        pytest.param(7, None, [0, 1, 2, 3, 4, 5], id="nothing behind the end"),
    ],
)
def test_what_is_left_after_a_removal(begin: int, end: int | None, left: list[int]) -> None:
    cache = make(1, 8)
    visible(cache, *tokens(0, 0, 6))
    cache.remove(0, begin, end)
    assert cache.length(0) == len(left)
    assert cache.num_free == 8 - len(left)
    assert visible(cache, (0, len(left)))[0][:-1] == left


@pytest.mark.parametrize(
    ("rotation", "span", "is_trimmed", "reason"),
    [
        pytest.param(None, AttentionSpan(), False, "keys cannot be moved", id="no rotation"),
        pytest.param(ROTATION, AttentionSpan(window=4), True, "need not be there", id="beginning trimmed"),
        pytest.param(ROTATION, AttentionSpan(window=4), False, "need not be there", id="nothing trimmed yet"),
    ],
)
def test_a_middle_that_cannot_be_removed_stays(
    rotation: Rope | None, span: AttentionSpan, is_trimmed: bool, reason: str
) -> None:
    cache = make(3, 64, 8, span, rotation)
    visible(cache, *tokens(0, 0, 8))
    if is_trimmed:
        crowd(cache, sequence=2)
    free = cache.num_free
    with pytest.raises(NotSupportedError, match=f"sequence 0: tokens 1 to 6 of 8 .*{reason}"):
        cache.remove(0, 1, 6)
    assert (cache.length(0), cache.num_free) == (8, free)
    cache.remove(0, 0)
    assert cache.length(0) == 0


def test_what_is_shared_is_not_moved() -> None:
    cache = make(3, 8)
    visible(cache, *tokens(0, 0, 6))
    assert [cache.first_shared(0, begin) for begin in (0, 4, 6)] == [6, 6, 6]
    cache.copy_prefix(0, 1, 5)
    assert [cache.first_shared(0, begin) for begin in (0, 4, 5)] == [0, 4, 6]
    assert cache.first_shared(2, 0) == 0
    cache.check_remove(0, 1, 4)
    with pytest.raises(AssertionError, match="others see"):
        cache.remove(0, 1, 4)
    assert cache.length(0) == 6
    cache.remove(1, 0)
    cache.remove(0, 1, 4)
    assert cache.length(0) == 3


def test_what_a_failed_operation_left_is_forgotten() -> None:
    cache = make(3, 8)
    visible(cache, *tokens(0, 0, 6))
    cache.copy_prefix(0, 1, 5)
    visible(cache, *tokens(2, 0, 4))
    kept = cache.cells(0).tolist()
    table = cache._table
    table.cells.take(7, 1)  # like an append that stopped before it wrote the cell to its table
    table.lengths[2] = 8
    cache.forget([1, 2])
    assert [cache.length(sequence) for sequence in range(3)] == [6, 0, 0]
    assert cache.num_free == cache.num_cells - 6
    assert cache.cells(0).tolist() == kept
    assert cache.first_shared(0, 0) == 6


def test_cells_shared_before_a_removed_middle_do_not_matter() -> None:
    cache = make(2, 8)
    visible(cache, *tokens(0, 0, 6))
    cache.copy_prefix(0, 1, 3)
    cache.remove(0, 2, 4)
    assert visible(cache, (0, 4), (1, 3))[0][:4] == [0, 1, 4, 5]


def test_keys_turn_to_their_new_positions_in_slices() -> None:
    cache = make(1, 40, max_batch=4)
    storage = cache.record(Graph(), Dim("tokens", 4))[0].buffers[0].handle
    assert isinstance(storage, Storage)
    keys = storage.rows
    for begin in range(0, 40, 4):
        cells = cache.start_forward(batch(*tokens(0, begin, begin + 4)))["cells"]
        keys[cells, 0] = turned(np.arange(begin, begin + 4))
    cache.remove(0, 3, 17)
    left = visible(cache, (0, 26))[0][:-1]
    np.testing.assert_allclose(keys[left, 0], turned(np.arange(26)), atol=1e-5)


def turned(positions: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Return a key along the first axis, rotated to each position."""
    angles = ROTATION.frequencies[0] * positions
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)
