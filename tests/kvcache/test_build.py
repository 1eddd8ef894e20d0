"""The caches of a model's layers, and their memory."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.kvcache import (
    AttentionSpan,
    CacheSize,
    Causal,
    CausalCache,
    Checkpoints,
    Encoder,
    KVShape,
    KVTypes,
    LayerKind,
    Recurrent,
    StateShape,
    build_cache,
    cache_memory,
)
from chaski.kvcache.batch import Batch
from chaski.kvcache.kinds import delayed_rows, linear_attention, matrix_states, pooled
from chaski.ml import CPUOptions, open_backend
from chaski.ml.backend import HOST
from chaski.ml.graph import Dim, DType, Graph, Rope
from chaski.ml.recurrent_ops import CHUNK, RING

SIZE = CacheSize(sequences=1, capacity=64, max_batch=16)
TYPES = KVTypes(DType.F16, DType.Q8_0)
FULL = Causal(KVShape(2, 32, 64))
WIDE = Causal(KVShape(4, 32, 32))
LATENT = Causal(KVShape(1, 96, 64, values_in_keys=True))
WINDOW = Causal(KVShape(1, 32, 32), AttentionSpan(window=8))
IMAGE = Encoder(KVShape(2, 32, 32), max_rows=24, row_size=8)
CONV = Recurrent((StateShape(2, 40),), Checkpoints(count=3))
DELAYED = delayed_rows(3, 32)
DELTA = Recurrent((StateShape(3, 16), StateShape(1, 64)), Checkpoints(count=3))


def test_layers_of_one_kind_have_one_cache() -> None:
    backend = open_backend("cpu", CPUOptions(threads=1))
    assert isinstance(build_cache(backend, [FULL, WIDE], SIZE, TYPES), CausalCache)


@pytest.mark.parametrize(
    "layers",
    [[FULL, WIDE, LATENT], [CONV, WINDOW, FULL, WINDOW], [DELTA, FULL, CONV, IMAGE], [CONV], [DELAYED, FULL]],
    ids=lambda layers: "-".join(type(layer).__name__ for layer in layers),
)
def test_every_layer_finds_storage_of_its_shape(layers: list[LayerKind]) -> None:
    backend = open_backend("cpu", CPUOptions(threads=1))
    cache = build_cache(backend, layers, SIZE, TYPES)
    for layer, face in zip(layers, cache.record(Graph(), Dim("tokens", 16)), strict=True):
        if isinstance(layer, Recurrent):
            assert [(b.heads, b.size) for b in face.states] == [(s.heads, s.size) for s in layer.states]
        else:
            held = [(buffer.heads, buffer.size) for buffer in face.buffers]
            assert held == [(layer.shape.heads, size) for _, size in layer.shape.roles()]
    predicted = sum(kind.num_bytes[HOST] for kind in cache_memory(backend, layers, SIZE, TYPES))
    assert backend.memory().cache == predicted


def test_the_memory_of_each_kind() -> None:
    backend = open_backend("reference")
    size = CacheSize(sequences=3, capacity=100, max_batch=16)
    layers = [CONV, FULL, WINDOW, WIDE, LATENT, DELTA]
    kinds = cache_memory(backend, layers, size, KVTypes(DType.F32, DType.F32))
    assert [(kind.kind, kind.layers, kind.cells, kind.num_bytes[HOST]) for kind in kinds] == [
        ("all tokens", 3, 300, 4 * 300 * (2 * (32 + 64) + 4 * (32 + 32) + 96)),
        ("window 8", 1, 3 * 8 + 16, 4 * 40 * (32 + 32)),
        ("recurrent, 3 checkpoints", 2, 1 + 3 * 12, 4 * 37 * (2 * 40 + 3 * 16 + 64)),
    ]


def test_the_memory_of_recurrences_in_chunks() -> None:
    """A row for each state, and what is kept of the last tokens of each of three sequences."""
    backend = open_backend("reference")
    size = CacheSize(sequences=3, capacity=100, max_batch=16)
    once = Checkpoints(count=1)
    linear = linear_attention(key_heads=2, value_heads=4, key_size=8, value_size=5, checkpoints=once)
    columns = linear.states[0].size // 8
    assert columns >= 5
    per_row = {
        delayed_rows(3, 20, once): (3 * 20, RING * 20),
        pooled(10, 2, once): (3 * 10, RING * 2 * 2 * 10),
        linear: (4 * 8 * columns, RING * (2 * 8 + 4 * columns + 4)),
    }
    for layer, (state, tokens) in per_row.items():
        (found,) = cache_memory(backend, [layer], size, TYPES)
        assert str(layer) == found.kind == f"recurrent in chunks of {CHUNK}, 1 checkpoints"
        assert found.cells == 1 + 3 * (1 + 1 + 1)
        assert found.num_bytes[HOST] == 4 * (found.cells * state + 3 * tokens)
    assert matrix_states(2, 8, 5).heads == 2
    assert matrix_states(2, 8, 5).size == 8 * columns


def test_keys_without_positions_stay_as_they_are_when_they_move() -> None:
    backend = open_backend("reference")
    turned = Causal(KVShape(1, 4, 4, Rope(np.array([0.5, 0.1], np.float32))))
    unturned = Causal(KVShape(1, 4, 4, Rope(np.zeros(0, np.float32))))
    cache = build_cache(backend, [turned, unturned], SIZE, KVTypes(DType.F32, DType.F32))
    turned_keys, keys = (face.buffers[0].handle.rows for face in cache.record(Graph(), Dim("tokens", 16)))
    turned_keys[:], keys[:] = 1, 1
    positions = np.arange(6, dtype=np.int32)
    cache.start_forward(Batch(positions, positions, np.zeros_like(positions), positions[:0]))
    cache.remove(0, 1, 3)
    assert cache.length(0) == 4
    assert (turned_keys[3:6] != 1).any()
    assert (keys == 1).all()
