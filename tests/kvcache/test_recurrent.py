"""Rules of the recurrent cache: the states that are read, written, kept and restored."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.errors import NotSupportedError
from chaski.kvcache import Checkpoints, Recurrent, RecurrentCache, StateShape
from chaski.ml.graph import Dim, Graph
from chaski.ml.reference import ReferenceBackend
from tests.kvcache.recurrent_batches import batch, forward, resumable

FEW = Checkpoints(count=2, first=3, interval=4)


def make(sequences: int = 2, checkpoints: Checkpoints = FEW, states_kept: int = 1) -> RecurrentCache:
    kind = Recurrent((StateShape(1, 2),), checkpoints, states_kept=states_kept)
    return RecurrentCache(ReferenceBackend(), [kind], sequences)


def test_a_batch_reads_the_last_state_and_writes_another() -> None:
    cache = make()
    (first,) = forward(cache, (0, 3))
    assert first[:4] == [0, 3, 0, 0]
    second = forward(cache, (1, 2), (0, 1))
    assert [segment[:4] for segment in second] == [[0, 2, 0, 0], [2, 3, 2, first[4]]]
    targets = {first[4], *(segment[4] for segment in second)}
    assert len(targets) == 3
    assert 0 not in targets


def test_the_states_before_the_last_batches_can_be_resumed() -> None:
    cache = make(checkpoints=Checkpoints(count=0))
    for count in (2, 3, 1, 4):
        forward(cache, (0, count))
    assert resumable(cache) == [0, 5, 6, 10]
    cache.remove(0, 7)
    assert resumable(cache) == [0, 5, 6]


@pytest.mark.parametrize(
    ("counts", "outputs", "ends", "left"),
    [
        pytest.param((4, 5), 5, [5, 6, 7, 8, 9], [0, 4, 5, 6, 7, 8, 9], id="a token and four proposed ones"),
        pytest.param((4, 9), 9, [5, 6, 7, 8, 13], [0, 4, 5, 6, 7, 8, 13], id="too many proposed ones"),
        pytest.param((4, 6), 3, [7, 8, 9, 10], [0, 3, 4, 7, 8, 9, 10], id="known ones before them"),
        pytest.param((4, 1), 1, [5], [0, 1, 2, 3, 4, 5], id="one"),
        pytest.param((4, 6), 0, [10], [0, 1, 2, 3, 4, 10], id="no outputs"),
    ],
)
def test_there_is_a_state_after_each_token_that_may_be_dropped(
    counts: tuple[int, int], outputs: int, ends: list[int], left: list[int]
) -> None:
    cache = make(checkpoints=Checkpoints(count=0), states_kept=4)
    assert cache.num_droppable == 4
    before, more = counts
    for _ in range(before):
        forward(cache, (0, 1))
    segments = forward(cache, (0, more), outputs=outputs)
    assert [before + end for _, end, *_ in segments] == ends
    assert [begin for begin, *_ in segments] == [0, *(end for _, end, *_ in segments[:-1])]
    assert resumable(cache) == left
    cache.remove(0, ends[0])
    ((*_, source, _target),) = forward(cache, (0, 1))
    assert source == segments[0][4]


def test_states_are_kept_at_an_interval_and_the_oldest_go() -> None:
    cache = make()
    found = []
    for _ in range(16):
        forward(cache, (0, 1))
        found.append(resumable(cache)[1:-3])
    # Before the last three states: none below 3, four tokens apart, at most two.
    assert found[4] == []
    assert found[5] == [3]
    assert found[9] == [3, 7]
    assert found[13] == [7, 11]


@pytest.mark.parametrize(
    ("begin", "end", "left"),
    [
        pytest.param(11, None, 11, id="nothing"),
        pytest.param(10, None, 10, id="the last batch"),
        pytest.param(8, None, 7, id="to a checkpoint"),
        pytest.param(7, 12, 7, id="exactly there, by its end"),
        pytest.param(6, None, 3, id="to an older one"),
        pytest.param(2, None, 0, id="all"),
        pytest.param(0, None, 0, id="all of it"),
        pytest.param(5, 5, 11, id="an empty middle"),
    ],
)
def test_a_tail_goes_back_to_the_best_state(begin: int, end: int | None, left: int) -> None:
    cache = make()
    for _ in range(11):
        forward(cache, (0, 1))
    assert resumable(cache) == [0, 3, 7, 9, 10, 11]
    if end is None:
        assert cache.resumable(0, begin) == left
    cache.remove(0, begin, end)
    assert cache.length(0) == left
    assert resumable(cache) == [p for p in (0, 3, 7, 9, 10, 11) if p <= left]


def test_a_middle_is_refused() -> None:
    cache = make()
    forward(cache, (0, 6))
    with pytest.raises(NotSupportedError, match="tokens 1 to 3 of 6 cannot be removed"):
        cache.remove(0, 1, 3)
    assert cache.length(0) == 6


def test_a_shared_state_is_read_by_both_and_written_by_none() -> None:
    cache = make()
    ((*_, row),) = forward(cache, (0, 4))
    cache.copy_prefix(0, 1, 4)
    one, other = forward(cache, (0, 1), (1, 1))
    assert one[3] == other[3] == row
    assert len({row, one[4], other[4]}) == 3


def test_a_copy_gets_the_best_state_and_the_checkpoints_below_it() -> None:
    cache = make()
    for _ in range(11):
        forward(cache, (0, 1))
    cache.copy_prefix(0, 1, 8)
    assert cache.length(1) == 7
    assert resumable(cache, 1) == [0, 3, 7]
    cache.remove(0, 0)
    assert resumable(cache, 1) == [0, 3, 7]
    cache.copy_prefix(1, 1, 5)
    assert cache.length(1) == 3


def test_a_batch_that_is_taken_back_was_never_there() -> None:
    cache = make()
    forward(cache, (0, 4), (1, 2))
    more = batch(cache, (0, 3), (1, 1))
    before = cache.start_forward(more)["segments"][:, 3].tolist()
    cache.undo_forward(more)
    assert (cache.length(0), cache.length(1)) == (4, 2)
    assert cache.start_forward(more)["segments"][:, 3].tolist() == before


def test_the_end_of_a_prompt_leaves_the_state_before_its_last_token() -> None:
    cache = make(checkpoints=Checkpoints(count=2, first=3, interval=100))
    forward(cache, (0, 5), (1, 2))
    segments = forward(cache, (0, 6), (1, 3), outputs=True)
    assert [segment[:3] for segment in segments] == [[0, 5, 0], [5, 6, 0], [6, 8, 6], [8, 9, 6]]
    assert segments[0][3] == segments[1][3] != segments[2][3] == segments[3][3]
    assert len({segment[4] for segment in segments}) == 4
    assert resumable(cache) == [0, 5, 10, 11]
    for _ in range(200):
        forward(cache, (0, 1), outputs=True)
    assert resumable(cache)[:3] == [0, 10, 110]  # one state for its prompt, the other by the interval
    assert [(e.begin, e.ends_prompt) for e in cache.held(0, 5, 300)] == [(10, True), (211, False)]


def test_the_end_of_a_prompt_is_taken_back_as_if_it_was_never_there() -> None:
    cache = make()
    forward(cache, (0, 4))
    more = batch(cache, (0, 6), (1, 2), outputs=True)
    before = cache.start_forward(more)["segments"].tolist()
    cache.undo_forward(more)
    assert resumable(cache) == [0, 4]
    assert cache.length(1) == 0
    again = cache.start_forward(more)["segments"].tolist()
    assert [segment[:4] for segment in again] == [segment[:4] for segment in before]
    assert resumable(cache) == [0, 4, 9, 10]


def test_a_copy_from_before_the_last_token_of_a_prompt_shares_its_state() -> None:
    cache = make()
    forward(cache, (0, 4))
    segments = forward(cache, (0, 6), outputs=True)
    cache.copy_prefix(0, 1, 9)
    assert cache.length(1) == 9
    ((*_, source, _target),) = forward(cache, (1, 1))
    assert source == segments[0][4]


@pytest.mark.parametrize("states_kept", [1, 3, 7])
def test_rows_never_run_out_and_no_row_is_both_read_and_written(states_kept: int) -> None:
    random = np.random.default_rng(4)
    cache = make(4, Checkpoints(count=3, first=2, interval=3), states_kept)
    (face,) = cache.record(Graph(), Dim("tokens", 64))
    assert face.states[0].cells == 1 + 4 * (3 + 2 + states_kept)
    assert face.segments.shape[0].maximum == min(4 * (1 + states_kept), 64)
    content: dict[int, list[int]] = {0: []}
    written: list[list[int]] = [[] for _ in range(4)]
    for step in range(3000):
        source, target = (int(sequence) for sequence in random.integers(4, size=2))
        length = int(random.integers(cache.length(source) + 1))
        match random.integers(6):
            case 0:
                cache.copy_prefix(source, target, length)
                written[target] = written[source][: cache.length(target)]
            case 1:
                expected = cache.resumable(source, length)
                cache.remove(source, length)
                assert cache.length(source) == min(expected, len(written[source]))
                del written[source][cache.length(source) :]
            case _:
                grown = random.permutation(4)[: random.integers(1, 5)].tolist()
                counts = [(s, int(random.integers(1, 7))) for s in grown]
                more = batch(cache, *counts, outputs=int(random.integers(6)))
                segments = cache.start_forward(more)["segments"].tolist()
                assert not {s[3] for s in segments} & {s[4] for s in segments}
                assert len({s[4] for s in segments}) == len(segments)
                if not random.integers(8):
                    cache.undo_forward(more)
                    continue
                for begin, end, first, read, write in segments:
                    sequence = more.sequences[begin]
                    if begin == first:
                        assert content[read] == written[sequence]
                    written[sequence] += [step] * (end - begin)
                    content[write] = list(written[sequence])
        assert [cache.length(s) for s in range(4)] == [len(one) for one in written]
