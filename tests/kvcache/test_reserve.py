"""The reserved memory suffices for the largest batch, and reserving leaves no trace in a cache."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from chaski.kvcache import AttentionSpan, CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import CPUOptions, open_backend
from chaski.ml.graph import Dim, DType, Graph
from chaski.model.program import Program

from .tiny_hybrid import Delta, ShortConv, TinyHybrid

SEQUENCES, CAPACITY, MAX_BATCH = 3, 64, 96
LAYERS = [
    ShortConv,
    AttentionSpan(),
    AttentionSpan(window=20, memory=40),
    AttentionSpan(chunk=24),
    Delta,
    AttentionSpan(window=200),
]
FIRST = Batch(*(np.zeros(1, np.int32) for _ in range(4)))


def test_recording_changes_nothing() -> None:
    backend = open_backend("cpu", CPUOptions(threads=1))
    types, size = KVTypes(DType.F16, DType.F16), CacheSize(SEQUENCES, CAPACITY, MAX_BATCH)
    untouched, cache = (build_cache(backend, TinyHybrid(LAYERS).layer_kinds(), size, types) for _ in range(2))
    for _ in range(3):
        cache.record(Graph(), Dim("tokens", MAX_BATCH))
    assert [cache.length(sequence) for sequence in range(SEQUENCES)] == [0] * SEQUENCES
    expected, found = untouched.start_forward(FIRST), cache.start_forward(FIRST)
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in expected.items()
    }


@pytest.mark.parametrize("kv_type", [DType.F32, DType.F16])
def test_the_largest_batch_at_full_context_fits(tmp_path: Path, kv_type: DType) -> None:
    backend = open_backend("cpu", CPUOptions(threads=2))
    model = TinyHybrid(LAYERS)
    model.bind(backend, tmp_path)
    size = CacheSize(SEQUENCES, CAPACITY, MAX_BATCH)
    cache = build_cache(backend, model.layer_kinds(), size, KVTypes(kv_type, kv_type))
    program = Program(model, cache, backend, MAX_BATCH, MAX_BATCH)
    backend.load(lambda _: None)
    reserved, resident = backend.memory(), resident_bytes()
    # All sequences grow by whole batches with logits for every token, then again from the start.
    for _ in range(2):
        for begin in range(0, CAPACITY, MAX_BATCH // SEQUENCES):
            share = MAX_BATCH // SEQUENCES
            positions = np.tile(np.arange(begin, begin + share, dtype=np.int32), SEQUENCES)
            sequences = np.repeat(np.arange(SEQUENCES, dtype=np.int32), share)
            outputs = np.arange(MAX_BATCH, dtype=np.int32)
            assert np.isfinite(program.forward(Batch(positions, positions, sequences, outputs))).all()
        for sequence in range(SEQUENCES):
            assert cache.length(sequence) == CAPACITY
            cache.remove(sequence, 0)
    assert backend.memory() == reserved
    assert resident_bytes() - resident < 1 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
