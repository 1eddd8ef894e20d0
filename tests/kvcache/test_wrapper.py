"""Rules of the wrapper around several caches."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.errors import CacheFullError, NotSupportedError
from chaski.kvcache import AttentionSpan, CausalCache, KVShape, KVTypes, WrapperCache
from chaski.kvcache.batch import Batch
from chaski.ml.graph import Dim, DType, Graph, Rope
from chaski.ml.reference import ReferenceBackend

ROTATION = Rope(np.array([0.3], np.float32))


def causal(
    window: int | None = None,
    capacity: int = 16,
    heads: tuple[int, ...] = (1,),
    can_move: bool = True,
    chunk: int | None = None,
) -> CausalCache:
    shapes = [KVShape(count, 2, 2, ROTATION if can_move else None) for count in heads]
    span = AttentionSpan(window, chunk, memory=chunk)
    types = KVTypes(DType.F32, DType.F32)
    return CausalCache(ReferenceBackend(), shapes, 2, capacity, types, max_batch=16, span=span)


def forward(cache: WrapperCache, sequence: int, begin: int, end: int) -> dict[str, list[int]]:
    positions = np.arange(begin, end, dtype=np.int32)
    batch = Batch(positions, positions, np.full_like(positions, sequence), positions[:0])
    return {name: value.tolist() for name, value in cache.start_forward(batch).items()}


def crowd(wrapper: WrapperCache) -> None:
    """Write to another sequence until the cache is full, so that all sequences are trimmed."""
    for begin in range(0, 16, 8):
        forward(wrapper, 1, begin, begin + 8)


def test_each_layer_has_the_cache_of_its_kind() -> None:
    wrapper = WrapperCache([causal(heads=(1, 3)), causal(heads=(2,))], kinds=[0, 1, 0])
    graph = Graph()
    layers = wrapper.record(graph, Dim("tokens", 16))
    assert [layer.buffers[0].heads for layer in layers] == [1, 2, 3]
    assert list(graph.inputs) == [f"{kind}.{name}" for kind in "01" for name in ("cells", "history", "spans")]
    assert set(forward(wrapper, 0, 0, 2)) == set(graph.inputs)


def test_wrappers_can_be_nested() -> None:
    graph = Graph()
    inner = WrapperCache([causal()], [0])
    wrapper = WrapperCache([causal(), inner], [1, 0])
    wrapper.record(graph, Dim("tokens", 16))
    assert "1.0.cells" in graph.inputs
    assert set(forward(wrapper, 0, 0, 2)) == set(graph.inputs)


def test_a_batch_that_one_cache_refuses_is_in_none() -> None:
    caches = [causal(), causal(), causal(capacity=4)]
    wrapper = WrapperCache(caches, [0, 1, 2])
    forward(wrapper, 0, 0, 2)
    forward(wrapper, 1, 0, 1)
    free = [cache.num_free for cache in caches]
    with pytest.raises(CacheFullError):
        forward(wrapper, 0, 2, 6)
    assert [cache.length(0) for cache in caches] == [2, 2, 2]
    assert [cache.num_free for cache in caches] == free


def test_a_middle_that_one_cache_keeps_is_in_all() -> None:
    caches = [causal(), causal(can_move=False)]
    wrapper = WrapperCache(caches, [0, 1])
    forward(wrapper, 0, 0, 6)
    with pytest.raises(NotSupportedError):
        wrapper.remove(0, 1, 3)
    assert [cache.length(0) for cache in caches] == [6, 6]
    wrapper.remove(0, 0)
    assert wrapper.length(0) == 0


def test_a_middle_goes_from_all() -> None:
    caches = [causal(), causal(window=3)]
    wrapper = WrapperCache(caches, [0, 1])
    forward(wrapper, 0, 0, 8)
    wrapper.remove(0, 1, 3)
    assert [cache.length(0) for cache in caches] == [6, 6]


@pytest.mark.parametrize(
    ("begin", "end", "left"), [(7, None, 7), (2, None, 0), (2, 9, 0), (8, None, 8), (12, None, 8)]
)
def test_a_sequence_goes_from_all_when_one_cannot_resume_it(begin: int, end: int | None, left: int) -> None:
    caches = [causal(), causal(window=3)]
    wrapper = WrapperCache(caches, [0, 1])
    forward(wrapper, 0, 0, 7)
    forward(wrapper, 0, 7, 8)
    crowd(wrapper)  # trims the window to positions 5 to 7
    assert wrapper.can_resume(0, 7)
    assert not wrapper.can_resume(0, 2)
    wrapper.remove(0, begin, end)
    assert [cache.length(0) for cache in caches] == [left, left]


def test_what_stays_can_be_resumed_in_all() -> None:
    wrapper = WrapperCache([causal(chunk=3), causal(chunk=4), causal(window=3)], [0, 1, 2])
    forward(wrapper, 0, 0, 11)
    forward(wrapper, 0, 11, 12)
    crowd(wrapper)
    assert [wrapper.resumable(0, position) for position in (12, 11, 10)] == [12, 11, 0]
    wrapper.copy_prefix(0, 1, 10)
    assert wrapper.length(1) == 0


def test_a_prefix_is_copied_in_all() -> None:
    caches = [causal(), causal(window=3)]
    wrapper = WrapperCache(caches, [0, 1])
    forward(wrapper, 0, 0, 6)
    wrapper.copy_prefix(0, 1, 5)
    assert [cache.length(1) for cache in caches] == [5, 5]
    wrapper.close()
