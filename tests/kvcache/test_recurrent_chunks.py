"""Rules of the recurrent cache for layers in chunks: states at boundaries, and rows of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.errors import NotSupportedError
from chaski.kvcache import Checkpoints, Recurrent, RecurrentCache, StateShape
from chaski.ml.graph import Dim, Graph
from chaski.ml.reference import ReferenceBackend
from tests.kvcache.recurrent_batches import batch, forward, resumable

FEW = Checkpoints(count=2, first=1, interval=8)
CHUNK, RING = 4, 8


def make(sequences: int = 2, checkpoints: Checkpoints = FEW) -> RecurrentCache:
    kind = Recurrent((StateShape(1, 2),), checkpoints, CHUNK, RING, (StateShape(RING, 3),))
    return RecurrentCache(ReferenceBackend(), [kind], sequences)


def test_a_state_is_written_where_a_boundary_is_passed() -> None:
    cache = make()
    assert forward(cache, (0, 4)) == [[0, 4, 0, 0, 0, 0, 0]]
    ((*_, source, target, since),) = forward(cache, (0, 1))
    assert source == since == 0 < target
    other, one = forward(cache, (1, 9), (0, 3))
    assert other[:5] == [0, 9, 0, 1, 0]
    assert other[5] not in (0, target)
    assert one == [9, 12, 5, 0, target, 0, 4]


def test_tokens_of_the_last_two_chunks_can_be_dropped() -> None:
    cache = make(checkpoints=Checkpoints(count=0))
    for _ in range(11):
        forward(cache, (0, 1))
    assert resumable(cache) == [0, 4, 5, 6, 7, 8, 9, 10, 11]
    cache.remove(0, 6)
    assert resumable(cache) == [0, 4, 5, 6]
    assert cache.num_droppable == CHUNK


def test_rows_that_a_long_batch_has_passed_are_gone() -> None:
    cache = make(checkpoints=Checkpoints(count=0))
    forward(cache, (0, 2))
    forward(cache, (0, 12))
    assert resumable(cache) == [0, 12, 13, 14]
    cache.remove(0, 11)
    assert cache.length(0) == 0


def test_another_sequence_shares_states_but_no_rows() -> None:
    cache = make()
    for _ in range(14):
        forward(cache, (0, 1))
    assert resumable(cache) == [0, 4, 8, 9, 10, 11, 12, 13, 14]
    assert cache.shareable(0, 14) == 12
    cache.copy_prefix(0, 1, 14)
    assert cache.length(1) == 12
    assert resumable(cache, 1) == [0, 4, 8, 12]
    assert forward(cache, (1, 4))[0][2:4] == [12, 1]
    assert resumable(cache, 1) == [0, 4, 8, 12, 13, 14, 15, 16]
    cache.copy_prefix(0, 1, 11)
    assert cache.length(1) == 8
    assert cache.length(0) == 14


@pytest.mark.parametrize("length", range(1, 14))
def test_the_last_token_of_a_prompt_is_computed_again_alone(length: int) -> None:
    cache = make()
    forward(cache, (0, length), outputs=True)
    assert cache.resumable(0, length - 1) >= (length - 1) // CHUNK * CHUNK
    if length > CHUNK:
        assert cache.resumable(0, length - 1) == length - 1
    for _ in range(40):
        forward(cache, (0, 1), outputs=True)
    assert cache.resumable(0, length) == (length - 1) // CHUNK * CHUNK


def test_other_answers_begin_at_the_end_of_the_prompt() -> None:
    cache = make(checkpoints=Checkpoints(count=3, first=1, interval=100))
    forward(cache, (0, 9))
    forward(cache, (0, 5), outputs=True)
    for _ in range(40):
        forward(cache, (0, 1), outputs=True)
    assert cache.resumable(0, 53) == 53
    assert resumable(cache)[:3] == [0, 8, 12]
    cache.remove(0, 14)
    assert cache.length(0) == 12
    forward(cache, (0, 2), outputs=True)
    for _ in range(40):
        forward(cache, (0, 1), outputs=True)
    assert cache.resumable(0, 40) == 12


def test_a_middle_is_refused() -> None:
    cache = make()
    forward(cache, (0, 6))
    with pytest.raises(NotSupportedError, match="tokens 4 to 5 of 6 cannot be removed"):
        cache.remove(0, 4, 5)


@pytest.mark.parametrize("counts", [(2, 1), (2, 3), (3, 9), (4, 4), (5, 2)])
def test_a_batch_that_is_taken_back_was_never_there(counts: tuple[int, int]) -> None:
    cache = make()
    forward(cache, (0, 5), (1, 2))
    found = resumable(cache)
    more = batch(cache, (0, counts[0]), (1, counts[1]))
    before = cache.start_forward(more)["segments"].tolist()
    cache.undo_forward(more)
    assert (cache.length(0), cache.length(1)) == (5, 2)
    assert set(resumable(cache)) <= set(found)
    again = cache.start_forward(more)["segments"].tolist()
    assert [[*segment[:5], segment[6]] for segment in again] == [
        [*segment[:5], segment[6]] for segment in before
    ]


def test_what_is_read_was_written_by_the_same_tokens() -> None:
    """States and rows contain the steps that wrote their tokens, so the test notices a wrong one."""
    random = np.random.default_rng(4)
    cache = make(4, Checkpoints(count=3, first=2, interval=6))
    (face,) = cache.record(Graph(), Dim("tokens", 64))
    assert (face.states[0].cells, face.rows[0].cells) == (1 + 4 * (3 + 2), 4)
    states: dict[int, list[int]] = {0: []}
    rows = np.full((4, RING), -1)
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
                assert cache.length(source) == expected
                del written[source][expected:]
            case _:
                grown = random.permutation(4)[: random.integers(1, 5)].tolist()
                segments = forward(
                    cache, *((s, int(random.integers(1, 7))) for s in grown), outputs=bool(step % 3)
                )
                assert not {s[4] for s in segments} & {s[5] for s in segments if s[5]}
                for sequence, segment in zip(grown, segments, strict=True):
                    begin, end, position, cell, read, write, boundary = segment
                    own = written[sequence]
                    assert (len(own), cell) == (position, sequence)
                    assert states[read] == own[:boundary]
                    assert rows[cell, np.arange(boundary, position) % RING].tolist() == own[boundary:]
                    own += [step] * (end - begin)
                    rows[cell, np.arange(position, len(own)) % RING] = step
                    if write:
                        states[write] = own[: len(own) - 1 - (len(own) - 1) % CHUNK]
        assert [cache.length(s) for s in range(4)] == [len(one) for one in written]


def test_a_batch_is_taken_back_with_all_that_followed_it() -> None:
    cache, fresh = make(), make()
    for each in (cache, fresh):
        forward(each, (0, 7), (1, 2))
    first = batch(cache, (0, 1), (1, 1))
    cache.start_forward(first)
    for _ in range(3):
        forward(cache, (0, 1), (1, 1))
    cache.undo_forward(first)
    assert (cache.length(0), cache.length(1)) == (7, 2)
    for _ in range(2):
        found, wanted = (forward(each, (0, 3), (1, 4)) for each in (cache, fresh))
        assert [[*part[:4], part[6]] for part in found] == [[*part[:4], part[6]] for part in wanted]
