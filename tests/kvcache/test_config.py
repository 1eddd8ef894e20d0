"""A backend's cache layout does not change results: padding, pages, permuted values, forms of masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.kvcache import AttentionSpan, CacheSize, Causal, KVShape, KVTypes, build_cache, cache_memory
from chaski.kvcache.batch import Batch
from chaski.kvcache.causal import CausalLayer
from chaski.kvcache.masks import dense_mask
from chaski.ml.backend import CacheConfig, MaskForm
from chaski.ml.graph import DenseMask, Dim, DType, Graph, Mask, PagedMask
from chaski.ml.reference import ReferenceBackend
from chaski.ml.reference.cached_ops import Storage
from chaski.model.program import Program

from .tiny_hybrid import VOCAB, TinyHybrid

CAPACITY, MAX_BATCH = 50, 24
SIZE = CacheSize(2, CAPACITY, MAX_BATCH)
TYPES = KVTypes(DType.F32, DType.F32)
CONFIGS = [
    CacheConfig(padding=32),
    CacheConfig(permuted_values=True),
    CacheConfig(mask=MaskForm.F32),
    CacheConfig(padding=7, permuted_values=True, mask=MaskForm.F16),
    CacheConfig(mask=MaskForm.PAGED),
    CacheConfig(page=4, mask=MaskForm.PAGED),
    CacheConfig(page=4, padding=6, permuted_values=True, mask=MaskForm.PAGED),
]


def logits(directory: Path, config: CacheConfig) -> npt.NDArray[np.float32]:
    """Return logits of two sequences, in chunks and together, with a removed middle and windows."""
    backend = ReferenceBackend(config)
    model = TinyHybrid([AttentionSpan(), AttentionSpan(window=9, memory=CAPACITY)])
    model.bind(backend, directory)
    cache = build_cache(backend, model.layer_kinds(), SIZE, TYPES)
    program = Program(model, cache, backend, MAX_BATCH, 2)
    random = np.random.default_rng(0)
    found = []

    def forward(*counts: tuple[int, int]) -> None:
        positions = [np.arange(count) + cache.length(sequence) for sequence, count in counts]
        sequences = np.repeat([s for s, _ in counts], [count for _, count in counts])
        ids = random.integers(VOCAB, size=len(sequences))
        ends = np.cumsum([count for _, count in counts]) - 1
        arrays = (ids, np.concatenate(positions), sequences, ends)
        found.append(program.forward(Batch(*(array.astype(np.int32) for array in arrays))).copy())

    forward((0, 20))
    forward((0, 4), (1, 17))
    forward((1, 1), (0, 1))
    cache.remove(1, 4, 8)
    cache.remove(0, 21)
    for _ in range(3):
        forward((0, 1), (1, 5))
    return np.concatenate(found)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_results_do_not_depend_on_wishes(tmp_path: Path, config: CacheConfig) -> None:
    np.testing.assert_allclose(logits(tmp_path, config), logits(tmp_path, CacheConfig()), atol=2e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_wishes_are_fulfilled(config: CacheConfig) -> None:
    backend = ReferenceBackend(config)
    kinds = [Causal(KVShape(3, 4, 6), AttentionSpan())]
    cells = cache_memory(backend, kinds, SIZE, TYPES)[0].cells
    assert cells % config.padding == 0
    assert 2 * CAPACITY <= cells < 2 * CAPACITY + config.padding + 5 * config.page
    cache = build_cache(backend, kinds, SIZE, TYPES)
    (layer,) = cache.record(Graph(), Dim("tokens", MAX_BATCH))
    assert isinstance(layer, CausalLayer)
    values = layer.buffers[1].handle
    assert isinstance(values, Storage)
    assert values.rows.shape == ((3, 6, cells) if config.permuted_values else (cells, 3, 6))
    forms = {MaskForm.SPANS: Mask, MaskForm.PAGED: PagedMask}
    assert isinstance(layer.mask, forms.get(config.mask, DenseMask))
    if isinstance(layer.mask, DenseMask):
        assert layer.mask.matrix.dtype.value == config.mask.value


def test_a_dense_mask_says_what_spans_say() -> None:
    history = np.array([4, 2, 7, 0, 1, 4], np.int32)
    spans = np.array([[0, 3, 0], [2, 3, 5], [3, 6, 0]], np.int32)
    mask = dense_mask(history, spans, 9)
    assert [np.flatnonzero(row == 0).tolist() for row in mask] == [[2, 4, 7], [7], [0, 1, 4]]
    assert np.isneginf(mask[mask != 0]).all()
