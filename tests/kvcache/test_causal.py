"""Rules of the causal cache, each as a table of what is given and what is expected."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import CacheFullError, NotSupportedError
from chaski.kvcache import AttentionSpan, CausalCache, KVShape, KVTypes
from chaski.kvcache.batch import Batch
from chaski.ml.graph import Dim, DType, Graph, Rope
from chaski.ml.reference import ReferenceBackend
from chaski.ml.reference.cached_ops import Storage

EVERYTHING = AttentionSpan()


ROTATION = Rope(np.array([0.3], np.float32))


def make(
    sequences: int = 2,
    capacity: int = 8,
    max_batch: int = 16,
    span: AttentionSpan = EVERYTHING,
    rotation: Rope | None = ROTATION,
) -> CausalCache:
    backend, shapes = ReferenceBackend(), [KVShape(1, 2, 2, rotation)]
    return CausalCache(
        backend, shapes, sequences, capacity, KVTypes(DType.F32, DType.F32), max_batch=max_batch, span=span
    )


def batch(*tokens: tuple[int, int], ends: list[int] | None = None) -> Batch:
    """A batch of (sequence, position) pairs."""
    sequences, positions = np.array(tokens, np.int32).T
    groups = None if ends is None else np.array(ends, np.int32)
    return Batch(np.zeros_like(positions), positions, sequences, np.zeros(0, np.int32), groups)


def tokens(sequence: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(sequence, position) for position in range(begin, end)]


def visible(cache: CausalCache, *tokens: tuple[int, int], ends: list[int] | None = None) -> list[list[int]]:
    """The cells that each token of a batch sees."""
    inputs = cache.start_forward(batch(*tokens, ends=ends))
    return [inputs["history"][begin:end].tolist() for begin, end, _ in inputs["spans"]]


def crowd(cache: CausalCache, sequence: int = 1, max_batch: int = 8) -> None:
    """Fill the cache with a sequence until there is no room, so that all are trimmed."""
    while cache.num_free >= max_batch:
        length = cache.length(sequence)
        visible(cache, *tokens(sequence, length, length + max_batch))
    visible(cache, *tokens(sequence, cache.length(sequence), cache.length(sequence) + max_batch))


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
    table.cells.take(7, 1)  # as if an append had stopped before it wrote the cell to its table
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
    storage = cache.record(Graph(), Dim("tokens", 4))[0].keys.handle
    assert isinstance(storage, Storage)
    keys = storage.rows
    for begin in range(0, 40, 4):
        cells = cache.start_forward(batch(*tokens(0, begin, begin + 4)))["cells"]
        keys[cells, 0] = turned(np.arange(begin, begin + 4))
    cache.remove(0, 3, 17)
    left = visible(cache, (0, 26))[0][:-1]
    np.testing.assert_allclose(keys[left, 0], turned(np.arange(26)), atol=1e-5)


def turned(positions: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """A key along the first axis, turned to each position."""
    angles = ROTATION.frequencies[0] * positions
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


@pytest.mark.parametrize(
    ("span", "first"),
    [
        (AttentionSpan(), [0, 0, 0, 0, 0, 0, 0, 0]),
        (AttentionSpan(window=1), [0, 1, 2, 3, 4, 5, 6, 7]),
        (AttentionSpan(window=3), [0, 0, 0, 1, 2, 3, 4, 5]),
        (AttentionSpan(window=3, memory=5), [0, 0, 0, 1, 2, 3, 4, 5]),
        (AttentionSpan(chunk=3), [0, 0, 0, 3, 3, 3, 6, 6]),
        (AttentionSpan(chunk=4, window=3), [0, 0, 0, 1, 4, 4, 4, 5]),
    ],
)
def test_the_first_token_that_is_visible(span: AttentionSpan, first: list[int]) -> None:
    assert span.first_visible(range(8)) == first
    cache = make(1, 8, 8, span)
    seen = visible(cache, *tokens(0, 0, 5)) + visible(cache, *tokens(0, 5, 8))
    # On an empty cache a token's cell is its position, except where trimmed ones are written again.
    assert [len(cells) for cells in seen] == [position + 1 - low for position, low in enumerate(first)]
    assert [cells[-1] for cells in seen] == list(range(8))


@pytest.mark.parametrize(
    ("span", "ends"), [(AttentionSpan(window=3), [5, 5, 5, 6]), (AttentionSpan(ahead=2), [3, 4, 5, 6])]
)
def test_the_last_token_of_a_group_that_is_visible(span: AttentionSpan, ends: list[int]) -> None:
    assert list(span.visible_ends(range(4), [5, 5, 5, 6])) == ends


@pytest.mark.parametrize(
    "options",
    [{"window": 0}, {"chunk": 0}, {"memory": 4}, {"window": 4, "memory": 3}, {"chunk": 4, "memory": 3}],
)
def test_a_reach_that_keeps_less_than_it_shows_is_refused(options: dict[str, int]) -> None:
    with pytest.raises((AssertionError, ValueError), match="AttentionSpan"):
        AttentionSpan(**options)


@pytest.mark.parametrize(
    ("sequences", "capacity", "max_batch", "span", "num_cells"),
    [
        pytest.param(3, 100, 16, AttentionSpan(), 300, id="all"),
        pytest.param(1, 100, 16, AttentionSpan(window=10), 10 + 16, id="window"),
        pytest.param(3, 100, 16, AttentionSpan(window=10), 3 * 10 + 16, id="one batch in total"),
        pytest.param(3, 100, 16, AttentionSpan(window=10, memory=20), 3 * 20 + 16, id="memory"),
        pytest.param(
            3, 100, 16, AttentionSpan(window=10, memory=100), 300, id="memory of the whole capacity"
        ),
        pytest.param(3, 100, 16, AttentionSpan(window=200), 300, id="window above the capacity"),
        pytest.param(3, 100, 16, AttentionSpan(chunk=10), 300, id="chunk"),
        pytest.param(3, 100, 16, AttentionSpan(chunk=10, memory=10), 3 * 10 + 16, id="chunk with memory"),
    ],
)
def test_how_many_cells_there_are(
    sequences: int, capacity: int, max_batch: int, span: AttentionSpan, num_cells: int
) -> None:
    assert make(sequences, capacity, max_batch, span).num_cells == num_cells


def test_spans_say_which_position_the_list_begins_with() -> None:
    cache = make(2, 8, 8, AttentionSpan(window=2))
    cache.start_forward(batch(*tokens(0, 0, 5)))
    inputs = cache.start_forward(batch((1, 0), (0, 5), (1, 1), (0, 6)))
    assert inputs["spans"].tolist() == [[0, 1, 0], [2, 4, 4], [0, 2, 0], [3, 5, 5]]
    assert len(inputs["history"]) == 5


def test_tokens_of_a_group_see_to_its_end() -> None:
    cache = make()
    visible(cache, (0, 0))
    seen = visible(cache, *tokens(0, 1, 5), ends=[2, 4, 4, 5])
    assert seen == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_windows_and_chunks_bound_what_a_group_sees_before_it() -> None:
    assert visible(make(span=AttentionSpan(window=2)), *tokens(0, 0, 4), ends=[1, 4, 4, 4]) == [
        [0],
        [0, 1, 2, 3],
        [1, 2, 3],
        [2, 3],
    ]
    assert visible(make(span=AttentionSpan(chunk=2)), *tokens(0, 0, 4), ends=[1, 4, 4, 4])[2] == [2, 3]


def test_a_group_must_be_in_one_batch() -> None:
    with pytest.raises(AssertionError, match="group"):
        make().start_forward(batch((0, 0), (0, 1), ends=[3, 3]))


@pytest.mark.parametrize(
    ("span", "resumable"),
    [
        pytest.param(AttentionSpan(), [0, 1, 2, 3, 4, 5, 6, 7, 8], id="all"),
        pytest.param(AttentionSpan(window=3), [0, 7, 8], id="window: one token may be taken back"),
        pytest.param(
            AttentionSpan(window=1), [0, 1, 2, 3, 4, 5, 6, 7, 8], id="window of one: sees nothing else"
        ),
        pytest.param(AttentionSpan(window=3, memory=6), [0, 4, 5, 6, 7, 8], id="memory"),
        pytest.param(AttentionSpan(chunk=3), [0, 1, 2, 3, 4, 5, 6, 7, 8], id="chunk"),
        pytest.param(
            AttentionSpan(chunk=3, memory=3), [0, 3, 6, 7, 8], id="chunk with memory: at the start of any"
        ),
    ],
)
def test_where_a_sequence_can_be_resumed(span: AttentionSpan, resumable: list[int]) -> None:
    cache = make(2, 64, 8, span)
    visible(cache, *tokens(0, 0, 8))
    if span.kept(64):
        crowd(cache)
    assert [position for position in range(10) if cache.can_resume(0, position)] == resumable
    assert cache.can_resume(1, 0)
    longest = [max(there for there in resumable if there <= position) for position in range(10)]
    assert [cache.resumable(0, position) for position in range(10)] == longest
    cache.copy_prefix(0, 1, 5)
    assert cache.length(1) == longest[5]
    cache.remove(0, 5)
    assert cache.length(0) == longest[5]


def test_idle_sequences_give_back_what_a_batch_left_them() -> None:
    cache = make(2, 20, 4, AttentionSpan(window=2))
    for begin in (0, 4):
        visible(cache, *tokens(0, begin, begin + 4))
    for begin in range(0, 20, 4):
        visible(cache, *tokens(1, begin, begin + 4))
    assert visible(cache, (0, 8))[0][0] in (6, 7)


def test_a_sequence_that_is_gone_begins_anew() -> None:
    cache = make(2, 64, 8, AttentionSpan(window=2))
    visible(cache, *tokens(0, 0, 8))
    crowd(cache)
    cache.remove(0, 3)  # what the next token would see was trimmed
    assert cache.length(0) == 0
    assert [len(cells) for cells in visible(cache, (0, 0), (0, 1))] == [1, 2]


def test_a_token_that_sees_only_itself_can_follow_any_other() -> None:
    cache = make(1, 20, 8, AttentionSpan(window=1))
    visible(cache, *tokens(0, 0, 8))
    cache.remove(0, 7)
    assert cache.length(0) == 7
    assert len(visible(cache, (0, 7))[0]) == 1


def test_two_sequences_that_go_on_from_one_prefix_do_not_alternate() -> None:
    cache = make(2, 64, 8)
    visible(cache, *tokens(0, 0, 8))
    cache.copy_prefix(0, 1, 8)
    for position in range(8, 16):
        mine, other = visible(cache, (0, position), (1, position))
    for cells in (mine, other):
        assert (np.diff(cells[8:]) == 1).all()
