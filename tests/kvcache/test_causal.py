"""Rules of the causal cache, and a random walk of operations against plain lists."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.errors import CacheFullError, NotSupportedError
from chaski.kvcache import CausalCache, KVShape
from chaski.ml.graph import DType
from chaski.ml.reference import ReferenceBackend
from chaski.model.input import Batch


def make(sequences: int = 2, capacity: int = 8) -> CausalCache:
    return CausalCache(ReferenceBackend(), [KVShape(1, 2, 2)], sequences, capacity, DType.F32)


def batch(*tokens: tuple[int, int]) -> Batch:
    """A batch of (sequence, position) pairs."""
    sequences, positions = np.array(tokens, np.int32).T
    return Batch(np.zeros_like(positions), positions, sequences, np.zeros(0, np.int32))


def visible(cache: CausalCache, *tokens: tuple[int, int]) -> list[list[int]]:
    """The cells that each token of a batch sees."""
    inputs = cache.start_forward(batch(*tokens))
    return [inputs["history"][begin:end].tolist() for begin, end, _ in inputs["spans"]]


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


def test_a_middle_cannot_be_removed_but_a_tail_can() -> None:
    cache = make()
    visible(cache, (0, 0), (0, 1), (0, 2))
    with pytest.raises(NotSupportedError, match="tokens 0 to 1"):
        cache.remove(0, 0, 1)
    cache.remove(0, 1, 3)
    assert cache.length(0) == 1
    assert cache.can_resume(0, 1)
    assert not cache.can_resume(0, 2)


def test_random_operations_match_plain_lists() -> None:
    rng = np.random.default_rng(11)
    sequences, capacity = 4, 12
    cache = make(sequences, capacity)
    # The model of the cache: what was written to each position, as the id of the write.
    lists: list[list[int]] = [[] for _ in range(sequences)]
    content: dict[int, int] = {}
    writes = 0
    for _ in range(3000):
        kind = rng.integers(4)
        source, target = (int(s) for s in rng.integers(sequences, size=2))
        if kind == 0:
            length = int(rng.integers(len(lists[source]) + 1))
            cache.copy_prefix(source, target, length)
            lists[target] = lists[source][:length]
        elif kind == 1:
            begin = int(rng.integers(len(lists[target]) + 2))
            cache.remove(target, begin)
            lists[target] = lists[target][:begin]
        else:
            tokens = [
                (s, len(lists[s]) + i)
                for s in rng.permutation(sequences)[:2].tolist()
                for i in range(int(rng.integers(4)))
                if len(lists[s]) + i < capacity
            ]
            if not tokens:
                continue
            inputs = cache.start_forward(batch(*tokens))
            assert len(set(inputs["cells"].tolist())) == len(tokens)
            for (sequence, _), cell in zip(tokens, inputs["cells"].tolist(), strict=True):
                writes += 1
                content[cell] = writes
                lists[sequence].append(writes)
            for (sequence, position), (begin, end, first) in zip(tokens, inputs["spans"], strict=True):
                seen = [content[cell] for cell in inputs["history"][begin:end].tolist()]
                assert seen == lists[sequence][: position + 1]
                assert first == 0
        assert [cache.length(s) for s in range(sequences)] == [len(one) for one in lists]
