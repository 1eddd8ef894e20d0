"""Logits of a model on an old cache, against those of the same tokens on a fresh one.

The oracle is a list of token ids per sequence. Whatever happened to the cache, the logits of a sequence's
last token equal bit for bit those of a fresh cache that computes the whole list at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import NotSupportedError
from chaski.kvcache import AttentionSpan, Cache, CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import CPUOptions, open_backend
from chaski.ml.graph import DType
from chaski.model.program import Program
from tests.backends import USUAL

from .tiny_hybrid import VOCAB, Delta, ShortConv, TinyHybrid

SEQUENCES, CAPACITY, MAX_BATCH = 3, 160, 48

F32 = npt.NDArray[np.float32]
Layers = Sequence[AttentionSpan | type[ShortConv | Delta]]

FULL, WINDOW, CHUNK, CONV = (
    AttentionSpan(),
    AttentionSpan(window=20, memory=40),
    AttentionSpan(chunk=24),
    ShortConv,
)
MODELS: list[Layers] = [
    [FULL, FULL],
    [AttentionSpan(window=20)] * 2,
    [AttentionSpan(window=70, memory=100)] * 2,
    [AttentionSpan(chunk=24)] * 2,
    [AttentionSpan(chunk=70, memory=80)] * 2,
    [WINDOW, FULL],
    [CONV, FULL, CONV],
    [CONV, CHUNK, CONV, WINDOW, FULL],
    [Delta, FULL, Delta],
    [Delta, CONV, WINDOW],
]


def _name(layer: AttentionSpan | type[ShortConv | Delta]) -> str:
    return str(layer) if isinstance(layer, AttentionSpan) else layer.__name__


@dataclass
class Tokens:
    """A sequence: its ids, the position up to which each token sees, and whether a middle was removed."""

    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    was_moved: bool = False

    def is_whole(self, length: int) -> bool:
        """Return whether no token of a prefix sees beyond it."""
        return max(self.ends[:length], default=0) <= length

    def prefix(self, length: int) -> Tokens:
        return Tokens(self.ids[:length], self.ends[:length], self.was_moved and length > 0)

    def grow(self, count: int, random: np.random.Generator) -> None:
        """Append tokens; sometimes the tokens of a call see each other like the parts of an image."""
        begin, end = len(self.ids), len(self.ids) + count
        self.ids += random.integers(VOCAB, size=count).tolist()
        self.ends += [end] * count if random.random() < 0.2 else range(begin + 1, end + 1)


class Running:
    """A tiny model on a cache."""

    def __init__(
        self,
        layers: Layers,
        directory: Path,
        sequences: int = 1,
        max_batch: int = CAPACITY,
        dtype: DType = DType.F16,
        backend: str = USUAL,
    ) -> None:
        opened = open_backend(backend, CPUOptions(threads=2))
        model = TinyHybrid(layers)
        model.bind(opened, directory)
        size = CacheSize(sequences, CAPACITY, max_batch)
        self.cache: Cache = build_cache(opened, model.layer_kinds(), size, KVTypes(dtype, dtype))
        self.program = Program(model, self.cache, opened, max_batch, sequences)

    def batch(self, sequences: dict[int, Tokens]) -> Batch:
        """Return the tokens that are not in the cache yet."""
        ids, positions, rows, ends, outputs = (list[int]() for _ in range(5))
        for sequence, tokens in sequences.items():
            begin = self.cache.length(sequence)
            ids += tokens.ids[begin:]
            ends += tokens.ends[begin:]
            positions += range(begin, len(tokens.ids))
            rows += [sequence] * (len(tokens.ids) - begin)
            outputs.append(len(ids) - 1)
        arrays = (np.array(values, np.int32) for values in (ids, positions, rows, outputs, ends))
        return Batch(*arrays)

    def forward(self, sequences: dict[int, Tokens]) -> dict[int, F32]:
        """Return the logits of the last token of each sequence."""
        logits = self.program.forward(self.batch(sequences)).copy()
        return dict(zip(sequences, logits, strict=True))

    def afresh(self, tokens: Tokens) -> F32:
        """Return the same logits from an empty cache."""
        self.cache.remove(0, 0)
        return self.forward({0: tokens})[0]


class Churn:
    """A cache with a random change in every step, and the list of each sequence."""

    def __init__(self, layers: Layers, directory: Path, seed: int) -> None:
        self.running = Running(layers, directory, SEQUENCES, MAX_BATCH)
        self.fresh = Running([retaining(span) for span in layers], directory)
        self.random = np.random.default_rng(seed)
        self.sequences = [Tokens() for _ in range(SEQUENCES)]
        self.compared = self.resumed = 0

    def step(self) -> None:
        source, target = (int(sequence) for sequence in self.random.permutation(SEQUENCES)[:2])
        length = int(self.random.integers(len(self.sequences[source].ids) + 1))
        match self.random.integers(9):
            case 0:
                self.running.cache.copy_prefix(source, target, length)
                self.sequences[target] = self.left(source, target)
            case 1 | 2:
                self.running.cache.remove(source, length)
                self.sequences[source] = self.left(source, source)
            case 3:
                if 0 < length < len(self.sequences[source].ids):
                    remove_middle(self.running.cache, source, self.sequences[source], length // 2, length)
            case _:
                self.forward(self.random.permutation(SEQUENCES)[:2].tolist())

    def left(self, source: int, target: int) -> Tokens:
        """Return the tokens of `source` that `target` keeps, without groups that see removed tokens."""
        length = self.running.cache.length(target)
        self.resumed += 0 < length < len(self.sequences[source].ids)
        if not self.sequences[source].is_whole(length):
            self.running.cache.remove(target, 0)
            length = 0
        return self.sequences[source].prefix(length)

    def forward(self, grown: list[int]) -> None:
        for sequence in grown:
            if CAPACITY - len(self.sequences[sequence].ids) < MAX_BATCH // 2:
                self.running.cache.remove(sequence, 0)
                self.sequences[sequence] = Tokens()
            count = 1 if self.random.random() < 0.5 else int(self.random.integers(1, MAX_BATCH // 2))
            self.sequences[sequence].grow(count, self.random)
        tokens = {sequence: self.sequences[sequence] for sequence in grown}
        if self.random.random() < 0.2:
            batch = self.running.batch(tokens)
            self.running.program.prepare(batch)
            self.running.cache.undo_forward(batch)
        for sequence, logits in self.running.forward(tokens).items():
            if not tokens[sequence].was_moved:
                assert (self.fresh.afresh(tokens[sequence]) == logits).all()
                self.compared += 1


@pytest.mark.parametrize("layers", MODELS, ids=lambda layers: " + ".join(map(_name, layers)))
def test_logits_do_not_depend_on_what_the_cache_went_through(tmp_path: Path, layers: Layers) -> None:
    churn = Churn(layers, tmp_path, seed=5)
    for _ in range(150):
        churn.step()
    assert churn.compared > 60
    assert churn.resumed > 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layers", MODELS, ids=lambda layers: " + ".join(map(_name, layers)))
def test_not_even_after_thousands_of_operations(tmp_path: Path, layers: Layers, seed: int) -> None:
    churn = Churn(layers, tmp_path, seed)
    for _ in range(2500):
        churn.step()


def retaining(
    span: AttentionSpan | type[ShortConv | Delta],
) -> AttentionSpan | type[ShortConv | Delta]:
    """Return the same visible tokens with everything kept."""
    if not isinstance(span, AttentionSpan) or span.visible is None:
        return span
    return AttentionSpan(span.window, span.chunk, CAPACITY)


def remove_middle(cache: Cache, sequence: int, tokens: Tokens, begin: int, end: int) -> None:
    """Remove a middle, if possible."""
    length = cache.length(sequence)
    if cache.first_shared(sequence, end) < length:
        return
    try:
        cache.remove(sequence, begin, end)
    except NotSupportedError:
        assert cache.length(sequence) == length
    else:
        del tokens.ids[begin:end]
        tokens.ends = list(range(1, len(tokens.ids) + 1))
        tokens.was_moved = bool(tokens.ids)


@pytest.mark.parametrize(
    "span", [AttentionSpan(), AttentionSpan(window=30), AttentionSpan(chunk=40)], ids=str
)
def test_keys_that_moved_are_those_of_their_new_positions(tmp_path: Path, span: AttentionSpan) -> None:
    """In a single layer, keys and values depend only on their own token, so a shift equals a fresh run."""
    random = np.random.default_rng(8)
    running = Running([span], tmp_path, sequences=2, max_batch=MAX_BATCH, dtype=DType.F32)
    fresh = Running([retaining(span)], tmp_path, dtype=DType.F32)
    tokens, other = Tokens(), Tokens()
    for _ in range(12):
        for one in (tokens, other):
            one.grow(20, random)
            one.ends = list(range(1, len(one.ids) + 1))
        found = running.forward({0: tokens, 1: other})
        for sequence, one in enumerate((tokens, other)):
            np.testing.assert_allclose(found[sequence], fresh.afresh(one), atol=2e-4)
            # Removals of many slices of a batch, also at the beginning, and of tokens that a window has
            # trimmed.
            remove_middle(running.cache, sequence, one, *((0, 15) if sequence else (7, 21)))
    assert len(tokens.ids) < 120


def test_keys_that_moved_give_the_logits_of_the_definition(tmp_path: Path) -> None:
    found = []
    for backend in ("reference", USUAL):
        random = np.random.default_rng(8)
        running = Running([FULL, FULL], tmp_path, 1, MAX_BATCH, DType.F32, backend)
        tokens = Tokens()
        for _ in range(5):
            tokens.grow(40, random)
            running.forward({0: tokens})
            remove_middle(running.cache, 0, tokens, 4, 30)
        tokens.grow(1, random)
        found.append(running.forward({0: tokens})[0])
    np.testing.assert_allclose(found[1], found[0], atol=2e-3)
    unmoved = Running([FULL, FULL], tmp_path, dtype=DType.F32)
    assert np.abs(unmoved.forward({0: tokens})[0] - found[0]).max() > 2e-3
