"""Logits of a model on a cache that has seen much, against those of the same tokens on a fresh one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import NotSupportedError
from chaski.formats.gguf import open_gguf
from chaski.kvcache import Cache, CacheSize, Causal, KVTypes, Reach, build_cache
from chaski.ml import BackendOptions, open_backend
from chaski.ml.graph import DType
from chaski.model.input import Batch
from chaski.model.program import Program
from chaski.model.registry import build_model
from chaski.model.weights import bind_weights

SEQUENCES, CAPACITY, MAX_BATCH, VOCAB = 3, 160, 48, 256

F32 = npt.NDArray[np.float32]


@dataclass
class Tokens:
    """A sequence: its ids, the position up to which each sees, and whether a middle was removed from it."""

    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    was_moved: bool = False

    def whole(self, length: int) -> int:
        """The longest prefix up to `length` of which no token sees beyond it."""
        return length if max(self.ends[:length], default=0) <= length else self.whole(length - 1)

    def prefix(self, length: int) -> Tokens:
        return Tokens(self.ids[:length], self.ends[:length], self.was_moved and length > 0)


class Model:
    """The tiny model on a cache of some kind."""

    def __init__(
        self,
        path: Path,
        reach: Reach | tuple[Reach, Reach],
        sequences: int,
        max_batch: int,
        dtype: DType,
        backend: str = "cpu",
    ) -> None:
        file = open_gguf(path)
        model = build_model(file)
        opened = open_backend(backend, BackendOptions(threads=2))
        bind_weights(model, file, opened, lambda _: None)

        reaches = (reach,) if isinstance(reach, Reach) else reach
        layers = [Causal(kind.shape, reaches[i % len(reaches)]) for i, kind in enumerate(model.layer_kinds())]
        size = CacheSize(sequences, CAPACITY, max_batch)
        self.cache = build_cache(opened, layers, size, KVTypes(dtype, dtype))
        self.program = Program(model, self.cache, opened, max_batch, sequences)

    def forward(self, sequences: dict[int, Tokens]) -> dict[int, F32]:
        """Compute what the cache does not hold yet -> the logits of the last token of each sequence."""
        ids, positions, rows, ends, outputs = [], [], [], [], []
        for sequence, tokens in sequences.items():
            begin = self.cache.length(sequence)
            ids += tokens.ids[begin:]
            ends += tokens.ends[begin:]
            positions += range(begin, len(tokens.ids))
            rows += [sequence] * (len(tokens.ids) - begin)
            outputs.append(len(ids) - 1)
        arrays = (np.array(values, np.int32) for values in (ids, positions, rows, outputs, ends))
        logits = self.program.forward(Batch(*arrays)).copy()
        return dict(zip(sequences, logits, strict=True))


def extended(tokens: Tokens, count: int, random: np.random.Generator) -> None:
    """More tokens; now and then those of one call see each other like the parts of an image."""
    begin, end = len(tokens.ids), len(tokens.ids) + count
    tokens.ids += random.integers(VOCAB, size=count).tolist()
    tokens.ends += [end] * count if random.random() < 0.2 else range(begin + 1, end + 1)


@pytest.mark.parametrize(
    "reach",
    [
        Reach(),
        Reach(window=20),
        Reach(window=70, memory=100),
        Reach(chunk=24),
        Reach(chunk=70, memory=80),
        (Reach(window=20, memory=40), Reach()),
    ],
    ids=str,
)
def test_logits_do_not_depend_on_what_the_cache_went_through(
    tiny_llama: Path, reach: Reach | tuple[Reach, Reach]
) -> None:
    random = np.random.default_rng(5)
    kept = retaining(reach) if isinstance(reach, Reach) else (retaining(reach[0]), retaining(reach[1]))
    model = Model(tiny_llama, reach, SEQUENCES, MAX_BATCH, DType.F16)
    fresh = Model(tiny_llama, kept, 1, CAPACITY, DType.F16)
    cache, sequences = model.cache, [Tokens() for _ in range(SEQUENCES)]
    compared = 0
    for _ in range(250):
        source, target = (int(sequence) for sequence in random.permutation(SEQUENCES)[:2])
        length = sequences[source].whole(int(random.integers(len(sequences[source].ids) + 1)))
        can_resume = cache.can_resume(source, length)
        kind = random.integers(8)
        if kind == 0 and can_resume:
            cache.copy_prefix(source, target, length)
            sequences[target] = sequences[source].prefix(length)
        elif kind == 1:
            cache.remove(source, length)
            sequences[source] = sequences[source].prefix(cache.length(source))
        elif kind == 2 and source == 0:
            remove_middle(cache, sequences[source], length // 2, length)
        elif kind > 2:
            grown = random.permutation(SEQUENCES)[:2].tolist()
            for sequence in grown:
                room = CAPACITY - len(sequences[sequence].ids)
                if room < MAX_BATCH // 2:
                    cache.remove(sequence, 0)
                    sequences[sequence] = Tokens()
                extended(sequences[sequence], int(random.integers(1, MAX_BATCH // 2)), random)
            for sequence, logits in model.forward({s: sequences[s] for s in grown}).items():
                if not sequences[sequence].was_moved:
                    fresh.cache.remove(0, 0)
                    assert (fresh.forward({0: sequences[sequence]})[0] == logits).all()
                    compared += 1
    assert compared > 100


def retaining(reach: Reach) -> Reach:
    """The same to see, with everything kept."""
    return Reach(reach.window, reach.chunk, None if reach.visible is None else CAPACITY)


def remove_middle(cache: Cache, tokens: Tokens, begin: int, end: int) -> None:
    """From sequence 0, if it can be done."""
    try:
        cache.remove(0, begin, end)
    except NotSupportedError:
        return
    del tokens.ids[begin:end]
    if cache.length(0) == 0:
        tokens.ids = []
    tokens.ends = list(range(1, len(tokens.ids) + 1))
    tokens.was_moved = bool(tokens.ids)


def test_keys_that_moved_give_the_logits_of_the_definition(tiny_llama: Path) -> None:
    found = []
    for backend in ("reference", "cpu"):
        random = np.random.default_rng(8)
        model = Model(tiny_llama, Reach(), 1, MAX_BATCH, DType.F32, backend)
        tokens = Tokens()
        for _ in range(5):
            extended(tokens, 40, random)
            model.forward({0: tokens})
            remove_middle(model.cache, tokens, 4, 30)
        extended(tokens, 1, random)
        found.append(model.forward({0: tokens})[0])
    np.testing.assert_allclose(found[1], found[0], atol=2e-3)
    unmoved = Model(tiny_llama, Reach(), 1, CAPACITY, DType.F32)
    assert np.abs(unmoved.forward({0: tokens})[0] - found[0]).max() > 2e-3
