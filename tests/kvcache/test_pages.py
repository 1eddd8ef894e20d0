"""Cells in whole pages: random operations keep every visible token at its place within a page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import NotSupportedError
from chaski.kvcache import AttentionSpan, CausalCache, KVShape, KVTypes
from chaski.kvcache.batch import Batch
from chaski.ml.backend import CacheConfig, MaskForm
from chaski.ml.graph import DType, KVBuffer, Rope
from chaski.ml.reference import ReferenceBackend
from chaski.ml.reference.cached_ops import Storage
from tests.tiers import long_after

SEQUENCES, CAPACITY, MAX_BATCH = 4, 50, 12

SPANS = [
    AttentionSpan(),
    AttentionSpan(window=5),
    AttentionSpan(window=5, memory=11),
    AttentionSpan(chunk=7),
    AttentionSpan(window=4, chunk=6),
    AttentionSpan(window=1),
]


def opened(span: AttentionSpan, page: int, max_batch: int = MAX_BATCH) -> CausalCache:
    return CausalCache(
        ReferenceBackend(CacheConfig(page=page, mask=MaskForm.PAGED)),
        [KVShape(1, 2, 2, Rope(np.array([0.3], np.float32)))],
        SEQUENCES,
        CAPACITY,
        KVTypes(DType.F32, DType.F32),
        max_batch=max_batch,
        span=span,
    )


def batch_of(cache: CausalCache, counts: dict[int, int]) -> Batch:
    positions = [np.arange(n) + cache.length(s) for s, n in counts.items()]
    sequences = np.repeat(list(counts), list(counts.values())).astype(np.int32)
    return Batch(sequences, np.concatenate(positions).astype(np.int32), sequences, sequences[:0])


class Written:
    """The last write to each cell, and to each position of each sequence."""

    def __init__(self, cache: CausalCache, span: AttentionSpan, page: int) -> None:
        self.cache, self.span, self.page = cache, span, page
        self.cells: dict[int, int] = {}
        self.sequences: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self.count = 0
        assert cache._copy is not None
        cache._copy.copy = self.copy  # type: ignore[method-assign]

    def copy(self, sources: npt.NDArray[np.int32], targets: npt.NDArray[np.int32]) -> None:
        assert not set(sources.tolist()) & set(targets.tolist())
        found = [self.cells[cell] for cell in sources.tolist()]
        self.cells.update(zip(targets.tolist(), found, strict=True))

    def forward(self, counts: dict[int, int]) -> None:
        batch = batch_of(self.cache, counts)
        inputs = self.cache.start_forward(batch)
        for sequence, cell in zip(batch.sequences.tolist(), inputs["cells"].tolist(), strict=True):
            self.count += 1
            self.cells[cell] = self.count
            self.sequences[sequence].append(self.count)
        starts = [*inputs["query_starts"].tolist(), len(batch.tokens)]
        for row, sequence in enumerate(counts):
            written = self.sequences[sequence]
            assert inputs["lengths"][row] == len(written)
            for token in range(starts[row], starts[row + 1]):
                first, end = inputs["bounds"][token].tolist()
                position = int(batch.positions[token])
                assert (first, end) == (self.span.first_visible([position])[0], position + 1)
                for seen in range(first, end):
                    block = int(inputs["block_table"][row, seen // self.page])
                    assert self.cells[block * self.page + seen % self.page] == written[seen]

    def adopt(self, sequence: int, length: int) -> None:
        """Write the restored tokens to the cells that the cache requests."""
        extent = self.cache.adopt(sequence, length)
        written = self.sequences[sequence]
        written += [0] * (length - len(written))
        if extent is None:
            return
        assert extent.end == length
        for position, cell in zip(range(extent.begin, length), extent.cells.tolist(), strict=True):
            assert cell % self.page == position % self.page
            self.count += 1
            self.cells[cell] = written[position] = self.count

    def cut(self) -> None:
        """Shorten sequences to the cache's lengths."""
        for sequence, written in enumerate(self.sequences):
            assert self.cache.length(sequence) <= len(written)
            del written[self.cache.length(sequence) :]


@pytest.mark.parametrize(("page", "max_batch"), long_after(1, [(4, MAX_BATCH), (16, MAX_BATCH), (4, 3)]))
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_tokens_are_at_their_places_of_pages(span: AttentionSpan, page: int, max_batch: int) -> None:
    random = np.random.default_rng(7)
    cache = opened(span, page, max_batch)
    written = Written(cache, span, page)
    shared = moved = restored = 0
    for _ in range(1000):
        kind = random.integers(7)
        source, target = (int(sequence) for sequence in random.integers(SEQUENCES, size=2))
        length = int(random.integers(cache.length(source) + 1))
        if kind == 0 and source != target:
            taken = cache.shareable(source, length)
            assert cache.can_resume(source, taken)
            assert cache.shareable(source, taken) == taken
            cache.copy_prefix(source, target, length)
            written.sequences[target] = written.sequences[source][:taken]
            assert cache.length(target) == taken
            shared += taken > 0
        elif kind == 1:
            assert cache.resumable(source, length) <= length
            cache.remove(source, length)
        elif kind == 2 and (begin := length) + page < cache.length(source):
            try:
                if cache.first_shared(source, begin + page) == cache.length(source):
                    cache.remove(source, begin, begin + page)
                    del written.sequences[source][begin : begin + page]
                    moved += 1
            except NotSupportedError:
                assert span.visible is not None
        elif kind == 3 and cache.length(source) < CAPACITY and cache.can_resume(source, cache.length(source)):
            written.adopt(source, int(random.integers(cache.length(source) + 1, CAPACITY + 1)))
            restored += 1
        else:
            chosen = np.flatnonzero(random.random(SEQUENCES) < 0.5).tolist()
            counts = {s: min(int(random.integers(1, 4)), CAPACITY - cache.length(s)) for s in chosen}
            while sum(counts.values()) > max_batch:
                counts.popitem()
            if counts := {s: n for s, n in counts.items() if n}:
                written.forward(counts)
        written.cut()
    assert shared > 3
    assert restored > 30
    assert moved > 3 or span.visible is not None


def test_a_middle_that_is_no_number_of_pages_is_computed_again() -> None:
    cache = opened(AttentionSpan(), 4)
    cache.start_forward(batch_of(cache, {0: 12}))
    for begin, end in ((4, 7), (3, 8)):
        with pytest.raises(NotSupportedError, match="no number of whole pages"):
            cache.remove(0, begin, end)
    cache.remove(0, 4, 8)
    assert cache.length(0) == 8


def rows_of(buffer: KVBuffer) -> npt.NDArray[np.float32]:
    assert isinstance(buffer.handle, Storage)
    return buffer.handle.rows


@pytest.mark.parametrize("is_permuted", [False, True])
def test_tokens_before_a_middle_are_copied_into_the_page_behind_it(is_permuted: bool) -> None:
    config = CacheConfig(alignment=4, page=4, mask=MaskForm.PAGED, permuted_values=is_permuted)
    types = KVTypes(DType.F32, DType.F32)
    shape = KVShape(2, 4, 6, Rope(np.zeros(0, np.float32)))
    cache = CausalCache(ReferenceBackend(config), [shape], 2, 24, types, max_batch=24)
    ((keys, values),) = cache._layers
    for buffer in (keys, values):
        rows_of(buffer)[:] = np.random.default_rng(1).normal(size=rows_of(buffer).shape)

    def stored(buffer: KVBuffer) -> npt.NDArray[np.float32]:
        rows = rows_of(buffer)
        cells = rows.transpose(2, 0, 1) if buffer is values and is_permuted else rows
        return np.array(cells[cache.cells(0)])

    cache.start_forward(batch_of(cache, {0: 21}))
    wanted = [np.delete(stored(buffer), np.s_[3:15], axis=0) for buffer in (keys, values)]
    cache.copy_prefix(0, 1, 12)
    # Cells of another sequence in the page where the rest begins must not be overwritten.
    assert (cache.first_shared(0, 15), cache.first_shared(0, 11)) == (21, 8)
    cache.remove(0, 3, 15)
    assert cache.length(0) == 9
    assert (cache.cells(0) % 4 == np.arange(9) % 4).all()
    assert len(np.unique(cache.cells(0) // 4)) == 3
    for buffer, rows in zip((keys, values), wanted, strict=True):
        assert (stored(buffer) == rows).all()
    cache.remove(0, 0)
    cache.remove(1, 0)
    assert cache.num_free == cache.num_cells


def test_part_of_a_page_is_not_shared() -> None:
    cache = opened(AttentionSpan(), 4)
    cache.start_forward(batch_of(cache, {0: 11}))
    assert cache.shareable(0, 11) == 8
    cache.copy_prefix(0, 1, 11)
    assert cache.length(1) == 8
    assert cache.resumable(0, 10) == 10
    assert cache.resumable(0, 7) == 4  # sequence 1 shares the rest of that page
    cache.remove(1, 0)
    assert cache.resumable(0, 7) == 7
