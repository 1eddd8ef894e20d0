"""All contents of a cache can be kept elsewhere, and return to other cells with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chaski.kvcache import AttentionSpan, Cache, CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import Backend, CPUOptions, open_backend
from chaski.ml.backend import CacheConfig
from chaski.ml.reference import ReferenceBackend
from chaski.model.program import Program
from tests.backends import USUAL
from tests.kvcache.tiny_hybrid import Delta, ShortConv, TinyHybrid
from tests.tiers import long_unless

WINDOW, CHUNK = 40, 50
EVERYTHING = AttentionSpan()
LAYERS: dict[str, list[Any]] = {
    "all": [EVERYTHING, EVERYTHING],
    "window": [AttentionSpan(window=WINDOW), EVERYTHING],
    "chunks": [AttentionSpan(chunk=CHUNK), EVERYTHING],
    "hidden": [AttentionSpan(hidden=1), EVERYTHING],
    "memory": [AttentionSpan(window=8, memory=24), EVERYTHING],
    "convolution": [ShortConv, EVERYTHING],
    "delta": [Delta, EVERYTHING, AttentionSpan(window=WINDOW)],
}
TYPES = ("f32", "f16", "i16", "bf16")
PROMPT = np.random.default_rng(7).integers(0, 256, 130).astype(np.int32)


class Run:
    """A tiny model with a cache for three sequences."""

    def __init__(self, layers: list[Any], backend: Backend, kv_type: str, folder: Path) -> None:
        folder.mkdir()
        model = TinyHybrid(layers)
        model.bind(backend, folder)
        size = CacheSize(sequences=3, capacity=160, max_batch=64)
        self.cache: Cache = build_cache(backend, model.layer_kinds(), size, KVTypes.parse(kv_type))
        self.program = Program(model, self.cache, backend, 64, 64)
        backend.load(lambda share: None)

    def compute(self, sequence: int, begin: int, end: int, step: int = 64) -> NDArray[np.float32]:
        """Compute tokens of the prompt; return the logits of the last batch."""
        for first in range(begin, end, step):
            last = min(first + step, end)
            places = np.arange(first, last, dtype=np.int32)
            outputs = np.arange(last - first, dtype=np.int32)
            sequences = np.full(last - first, sequence, np.int32)
            logits = self.program.forward(Batch(PROMPT[first:last], places, sequences, outputs))
        return logits


def backend_of(name: str) -> Backend:
    if name == "paged":
        return ReferenceBackend(CacheConfig(padding=4, page=16))
    if name == "reference":
        return ReferenceBackend()
    return open_backend(name, CPUOptions(threads=2))


@pytest.mark.parametrize("backend", [USUAL, "reference", "paged"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("kv_type", long_unless(["i16"], TYPES))
def test_what_comes_back_goes_on_with_the_same_bits(
    kind: str, backend: str, kv_type: str, tmp_path: Path
) -> None:
    if backend != USUAL and kv_type not in ("f32", "i16"):
        pytest.skip("the reference rounds as it stores, whatever is copied")
    first = Run(LAYERS[kind], backend_of(backend), kv_type, tmp_path / "first")
    second = Run(LAYERS[kind], backend_of(backend), kv_type, tmp_path / "second")
    length = 96
    first.compute(0, 0, length, 32)
    kept = [
        [(each, copied(leaf, each.cells)) for each in leaf.held(0, 0, length)] for leaf in first.cache.leaves
    ]
    wanted = first.compute(0, length, 130, 1)
    second.compute(1, 0, 50, 25)  # another sequence, so that the cells differ
    # The reference's sums depend on the shape of a batch, so nothing comes before the restored part.
    start = 16 if backend == USUAL and kind not in ("convolution", "delta") else 0
    if start:
        second.compute(2, 0, start)
    for leaf, parts in zip(second.cache.leaves, kept, strict=True):
        spans = [(extent.begin, extent.end) for extent, _ in parts]
        restorable = leaf.restorable(spans, start, length)
        assert restorable == length or kind == "delta"
    length = 96 if kind != "delta" else kept[delta_leaf(second.cache)][-1][0].end
    for leaf, parts in zip(second.cache.leaves, kept, strict=True):
        room = leaf.adopt(2, length)
        assert room is not None
        for extent, data in parts:
            if extent.is_state and extent.end == room.end:
                leaf.rows.write(room.cells, data, 0, 1)
            elif not extent.is_state:
                begin = max(extent.begin, room.begin)
                cells = room.cells[begin - room.begin : length - room.begin]
                leaf.rows.write(cells, data, begin - extent.begin, len(extent.cells))
    again = second.compute(2, length, 130, 1)
    assert np.allclose(again, wanted, atol=0 if backend == USUAL else 1e-4, rtol=0)
    assert (second.compute(1, 50, 60) == first_of(LAYERS[kind], backend, kv_type, tmp_path)).all()


def first_of(layers: list[Any], backend: str, kv_type: str, folder: Path) -> NDArray[np.float32]:
    """Return the logits of a neighbour without a restored sequence."""
    alone = Run(layers, backend_of(backend), kv_type, folder / "alone")
    alone.compute(1, 0, 50, 25)
    return alone.compute(1, 50, 60)


def copied(leaf: Any, cells: NDArray[np.int32]) -> NDArray[np.uint8]:
    data = np.zeros(leaf.rows.num_bytes(len(cells)), np.uint8)
    arriving = leaf.rows.read(cells, data, 0, len(cells))
    if arriving is not None:
        arriving.result()
    return data


def delta_leaf(cache: Cache) -> int:
    return next(i for i, leaf in enumerate(cache.leaves) if leaf.held(1, 0, 50)[0].is_state)


def test_rows_that_a_window_has_dropped_cannot_come_back(tmp_path: Path) -> None:
    run = Run([AttentionSpan(window=WINDOW)], ReferenceBackend(), "f32", tmp_path / "one")
    (leaf,) = run.cache.leaves
    assert leaf.restorable([(64, 128)], 0, 128) == 128
    assert leaf.restorable([(100, 128)], 0, 128) == 0
    assert leaf.restorable([(0, 64), (96, 128)], 0, 128) == 64
    assert leaf.restorable([(100, 128)], 99, 128) == 99
    assert leaf.restorable([(100, 128)], 100, 128) == 128
