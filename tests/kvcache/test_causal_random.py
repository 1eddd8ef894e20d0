"""Thousands of random operations on the causal cache against plain lists: visible tokens and keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from chaski.errors import NotSupportedError
from chaski.kvcache import AttentionSpan, CausalCache, KVShape, KVTypes
from chaski.kvcache.batch import Batch
from chaski.ml.backend import CacheConfig
from chaski.ml.graph import Dim, DType, Graph, Rope
from chaski.ml.reference import ReferenceBackend
from chaski.ml.reference.cached_ops import Storage

SEQUENCES, CAPACITY, MAX_BATCH = 4, 40, 12
FREQUENCY = 0.3

SPANS = [
    AttentionSpan(),
    AttentionSpan(window=5),
    AttentionSpan(window=5, memory=11),
    AttentionSpan(chunk=7),
    AttentionSpan(chunk=7, memory=9),
    AttentionSpan(window=4, chunk=6),
    AttentionSpan(window=1),
]


@dataclass
class Lists:
    """The model: for each position of each sequence, the number of its write."""

    span: AttentionSpan
    max_batch: int = MAX_BATCH
    written: list[list[int]] = field(default_factory=lambda: [[] for _ in range(SEQUENCES)])
    firsts: list[int] = field(default_factory=lambda: [0] * SEQUENCES)
    writes: int = 0

    @property
    def kept(self) -> int:
        return self.span.memory or self.span.window or CAPACITY

    def first_visible(self, position: int) -> int:
        window = position - self.span.window + 1 if self.span.window else 0
        chunk = position // self.span.chunk * self.span.chunk if self.span.chunk else 0
        return max(0, window, chunk)

    def can_resume(self, sequence: int, position: int) -> bool:
        stored = range(self.firsts[sequence], len(self.written[sequence]))
        return position <= len(self.written[sequence]) and all(
            seen in stored for seen in range(self.first_visible(position), position)
        )

    def resumable(self, sequence: int, position: int) -> int:
        return next(length for length in range(position, -1, -1) if self.can_resume(sequence, length))

    def remove(self, sequence: int, begin: int) -> None:
        if begin >= len(self.written[sequence]):
            return
        begin = self.resumable(sequence, begin)
        del self.written[sequence][begin:]
        self.firsts[sequence] = min(self.firsts[sequence], begin)

    def first_shared(self, sequence: int, begin: int) -> int:
        """Return the first position from `begin` on whose token another sequence shares."""
        others = {w for s in range(SEQUENCES) if s != sequence for w in self.written[s][self.firsts[s] :]}
        written = self.written[sequence]
        stored = range(max(begin, self.firsts[sequence]), len(written))
        return next((position for position in stored if written[position] in others), len(written))

    def can_remove(self, sequence: int, begin: int, end: int) -> bool:
        """Return whether the next token would still see all required tokens with minimal storage."""
        rest = Lists(self.span, self.max_batch, self.written[:], self.firsts[:])
        if self.kept < CAPACITY:
            rest.firsts[sequence] = self.first_visible(len(self.written[sequence]))
        rest.remove_middle(sequence, begin, end)
        return rest.can_resume(sequence, len(rest.written[sequence]))

    def remove_middle(self, sequence: int, begin: int, end: int) -> None:
        first, written = self.firsts[sequence], self.written[sequence]
        is_stored = [position >= first for position in range(len(written))]
        del is_stored[begin:end]
        self.written[sequence] = written[:begin] + written[end:]
        # The tokens that are no longer stored form one piece; the stored part begins after it.
        self.firsts[sequence] = len(is_stored) - is_stored[::-1].index(False) if False in is_stored else 0

    def copy(self, source: int, target: int, length: int) -> None:
        length = self.resumable(source, length)
        self.written[target] = self.written[source][:length]
        self.firsts[target] = min(self.firsts[source], length)

    def make_room(self, count: int, adopting: int | None = None) -> None:
        """Trim all sequences if `count` cells are not free; treat the adopting one as if it were longer."""
        kept = self.kept
        num_cells = SEQUENCES * CAPACITY if kept >= CAPACITY else SEQUENCES * kept + self.max_batch
        if count > num_cells - len(self.stored()):
            for sequence, written in enumerate(self.written):
                length = len(written) + (count if sequence == adopting else 0)
                self.firsts[sequence] = max(self.firsts[sequence], length - kept)

    def adopt(self, sequence: int, length: int) -> range:
        """Make the sequence `length` tokens long; return the positions of restored tokens."""
        written = self.written[sequence]
        first = self.first_visible(length) if self.kept < CAPACITY else 0
        if first > len(written):
            self.firsts[sequence] = first
            written += [0] * (first - len(written))
        begin = len(written)
        self.make_room(length - begin, sequence)
        for _ in range(begin, length):
            self.writes += 1
            written.append(self.writes)
        return range(begin, length)

    def stored(self) -> set[int]:
        return {write for s, written in enumerate(self.written) for write in written[self.firsts[s] :]}


def random_batch(lists: Lists, random: np.random.Generator) -> Batch:
    """Return tokens of some sequences in mixed order, sometimes as a group that sees up to its own end."""
    counts = random.integers(0, lists.max_batch // 2 + 1, SEQUENCES) * (random.random(SEQUENCES) < 0.5)
    room = [CAPACITY - len(written) for written in lists.written]
    counts = np.minimum(counts, room)
    while counts.sum() > lists.max_batch:
        counts[random.integers(SEQUENCES)] = 0
    sequences = random.permutation(np.repeat(np.arange(SEQUENCES), counts)).astype(np.int32)
    positions, ends = np.zeros((2, len(sequences)), np.int32)
    for sequence in range(SEQUENCES):
        rows = sequences == sequence
        begin = len(lists.written[sequence])
        positions[rows] = np.arange(begin, begin + counts[sequence])
        groups = np.sort(random.integers(begin + 1, begin + counts[sequence] + 1, counts[sequence]))
        ends[rows] = np.maximum(groups, positions[rows] + 1)
    has_groups = random.random() < 0.5
    return Batch(sequences, positions, sequences, sequences[:0], ends if has_groups else None)


def keys_of(writes: list[int], positions: range) -> np.ndarray:
    """Return the keys of these writes at their present positions."""
    angles = np.array(writes) + FREQUENCY * np.arange(positions.start, positions.stop)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def stored_keys(cache: CausalCache) -> np.ndarray:
    storage = cache.record(Graph(), Dim("tokens", MAX_BATCH))[0].buffers[0].handle
    assert isinstance(storage, Storage)
    return storage.rows


def restore(cache: CausalCache, lists: Lists, content: dict[int, int], sequence: int, length: int) -> None:
    positions = lists.adopt(sequence, length)
    extent = cache.adopt(sequence, length)
    if extent is None:
        assert not positions
        return
    assert (extent.begin, extent.end) == (positions.start, positions.stop)
    writes = lists.written[sequence][extent.begin :]
    content.update(zip(extent.cells.tolist(), writes, strict=True))
    stored_keys(cache)[extent.cells, 0] = keys_of(writes, positions)


def forward(cache: CausalCache, lists: Lists, content: dict[int, int], batch: Batch) -> None:
    keys = stored_keys(cache)
    inputs = cache.start_forward(batch)
    lists.make_room(len(batch.tokens))
    tokens = list(zip(batch.sequences.tolist(), batch.positions.tolist(), strict=True))
    assert len(set(inputs["cells"].tolist())) == len(tokens)
    for (sequence, position), cell in zip(tokens, inputs["cells"].tolist(), strict=True):
        lists.writes += 1
        content[cell] = lists.writes
        keys[cell] = keys_of([lists.writes], range(position, position + 1))
        lists.written[sequence].append(lists.writes)
    for index, (sequence, position) in enumerate(tokens):
        begin, end, first = inputs["spans"][index].tolist()
        seen = [content[cell] for cell in inputs["history"][begin:end].tolist()]
        until = position + 1 if batch.ends is None else int(batch.ends[index])
        assert first == lists.first_visible(position)
        assert seen == lists.written[sequence][first:until]
        found = keys[inputs["history"][begin:end], 0]
        np.testing.assert_allclose(found, keys_of(seen, range(first, until)), atol=1e-3)


@pytest.mark.timed
@pytest.mark.parametrize(
    "span",
    [*SPANS[:2], *(pytest.param(span, marks=pytest.mark.long) for span in SPANS[2:])],
    ids=str,
)
@pytest.mark.parametrize("max_batch", [MAX_BATCH, 2], ids="max_batch={}".format)
def test_random_operations_match_plain_lists(span: AttentionSpan, max_batch: int) -> None:
    random = np.random.default_rng(11)
    shapes = [KVShape(1, 2, 2, Rope(np.array([FREQUENCY], np.float32)))]
    cache = CausalCache(
        ReferenceBackend(),
        shapes,
        SEQUENCES,
        CAPACITY,
        KVTypes(DType.F32, DType.F32),
        max_batch=max_batch,
        span=span,
    )
    lists = Lists(span, max_batch)
    content: dict[int, Any] = {}
    moves = refusals = restored = 0
    for _ in range(2000):
        kind = random.integers(8)
        source, target = (int(sequence) for sequence in random.integers(SEQUENCES, size=2))
        length = int(random.integers(len(lists.written[source]) + 1))
        assert cache.can_resume(source, length) == lists.can_resume(source, length)
        assert cache.resumable(source, length) == lists.resumable(source, length)
        assert cache.first_shared(source, length) == lists.first_shared(source, length)
        if kind == 0 and source != target:
            cache.copy_prefix(source, target, length)
            lists.copy(source, target, length)
        elif kind == 1:
            cache.remove(source, length)
            lists.remove(source, length)
        elif kind == 2 and length:
            begin = int(random.integers(length))
            if length == len(lists.written[source]):
                cache.remove(source, begin, length)
                lists.remove(source, begin)
            elif not lists.can_remove(source, begin, length):
                with pytest.raises(NotSupportedError):
                    cache.remove(source, begin, length)
                refusals += 1
            elif cache.first_shared(source, length) == len(lists.written[source]):
                cache.remove(source, begin, length)
                lists.remove_middle(source, begin, length)
                moves += 1
        elif kind == 3 and len(lists.written[source]) < CAPACITY:
            longer = int(random.integers(len(lists.written[source]) + 1, CAPACITY + 1))
            restore(cache, lists, content, source, longer)
            restored += 1
        elif kind > 3 and len((batch := random_batch(lists, random)).tokens) > 0:
            forward(cache, lists, content, batch)
        assert [cache.length(s) for s in range(SEQUENCES)] == [len(one) for one in lists.written]
        assert cache.num_cells - cache.num_free == len(lists.stored())
    assert moves > 20
    assert restored > 50
    assert refusals > 3 or lists.kept in (1, CAPACITY)


def test_what_comes_back_fits_whatever_others_hold() -> None:
    random = np.random.default_rng(29)
    for _ in range(300):
        window, sequences = int(random.integers(1, 20)), int(random.integers(1, 5))
        span = AttentionSpan(window, memory=window + int(random.integers(6)))
        page, max_batch = int(random.choice((1, 1, 4))), int(random.integers(1, 24))
        cache = CausalCache(
            ReferenceBackend(CacheConfig(page=page)),
            [KVShape(1, 2, 2)],
            sequences,
            CAPACITY,
            KVTypes(DType.F32, DType.F32),
            max_batch=max_batch,
            span=span,
        )
        for _ in range(40):
            sequence = int(random.integers(sequences))
            length = cache.length(sequence)
            if length == CAPACITY or random.random() < 0.1:
                cache.remove(sequence, int(random.integers(length + 1)))
            elif random.random() < 0.5:
                count = int(random.integers(1, min(max_batch, CAPACITY - length) + 1))
                positions = np.arange(length, length + count, dtype=np.int32)
                of_sequence = np.full(count, sequence, np.int32)
                cache.start_forward(Batch(positions, positions, of_sequence, positions[:0]))
            else:
                cache.adopt(sequence, int(random.integers(length + 1, CAPACITY + 1)))
            assert cache.can_resume(sequence, cache.length(sequence))
