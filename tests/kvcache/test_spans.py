"""The tokens that windows, chunks and groups let a token see, and the places to resume a sequence."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.kvcache import AttentionSpan
from tests.kvcache.causal import batch, crowd, make, tokens, visible


@pytest.mark.parametrize(
    ("span", "first"),
    [
        (AttentionSpan(), [0, 0, 0, 0, 0, 0, 0, 0]),
        (AttentionSpan(window=1), [0, 1, 2, 3, 4, 5, 6, 7]),
        (AttentionSpan(window=3), [0, 0, 0, 1, 2, 3, 4, 5]),
        (AttentionSpan(window=3, memory=5), [0, 0, 0, 1, 2, 3, 4, 5]),
        (AttentionSpan(chunk=3), [0, 0, 0, 3, 3, 3, 6, 6]),
        (AttentionSpan(chunk=4, window=3), [0, 0, 0, 1, 4, 4, 4, 5]),
        (AttentionSpan(hidden=1), [0, 1, 1, 1, 1, 1, 1, 1]),
        (AttentionSpan(hidden=2, window=4), [0, 1, 2, 2, 2, 2, 3, 4]),
    ],
)
def test_the_first_token_that_is_visible(span: AttentionSpan, first: list[int]) -> None:
    assert span.first_visible(range(8)) == first
    cache = make(1, 8, 8, span)
    seen = visible(cache, *tokens(0, 0, 5)) + visible(cache, *tokens(0, 5, 8))
    # On an empty cache, a token's cell is its position, except for reused trimmed cells.
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
    cache.remove(0, 3)  # tokens that the next token would see were trimmed
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
