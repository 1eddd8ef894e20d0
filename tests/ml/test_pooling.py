"""Pools of groups of tokens: softmaxes over each channel, the same bits however a sequence is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chaski.kvcache import RecurrentCache, pooled
from chaski.kvcache.batch import Batch
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph
from tests.backends import FORMS

F32 = npt.NDArray[np.float32]
PLACES = [("reference", "auto"), *FORMS]
COUNT, CHANNELS = 150, 70
GROUPS = [(4, 2), (16, 2), (8, 1), (32, 1), (64, 1)]
"""Tokens of a group, and inputs of a token: 2 if groups overlap."""


class Pooling:
    """The operation on a cache, with values and scores that do not depend on how tokens are cut."""

    def __init__(self, place: tuple[str, str], ratio: int, inputs: int) -> None:
        backend = open_backend(place[0], CPUOptions(threads=2, isa=place[1]))
        random = np.random.default_rng(1)
        shape = (COUNT, inputs * CHANNELS)
        self.values, self.scores = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
        self.scores[::7] *= 200  # powers of the others vanish
        self.bias = random.standard_normal((ratio, shape[1])).astype(np.float32)
        self.cache = RecurrentCache(backend, [pooled(CHANNELS, inputs)], 2)
        graph, tokens = Graph(), Dim("tokens", COUNT)
        values, scores = (graph.input(name, (tokens, shape[1]), DType.F32) for name in ("values", "scores"))
        (kept,) = self.cache.record(graph, tokens)
        y = ops.pooling(values, scores, self.bias, kept.states[0], kept.rows[0], kept.segments)
        graph.output("y", y)
        self._plan = backend.compile(graph)
        backend.load(lambda _: None)

    def forward(self, counts: dict[int, int]) -> dict[int, F32]:
        """Continue each sequence by some tokens; return its results."""
        positions = [np.arange(self.cache.length(s), self.cache.length(s) + n) for s, n in counts.items()]
        at = np.concatenate(positions).astype(np.int32)
        sequences = np.repeat(list(counts), list(counts.values())).astype(np.int32)
        segments = self.cache.start_forward(Batch(at, at, sequences, at[:0]))["segments"]
        inputs = {"values": self.values[at], "scores": self.scores[at], "segments": segments}
        rows = self._plan.launch(inputs).rows("y").copy()
        ends = np.cumsum(list(counts.values()))
        return dict(zip(counts, np.split(rows, ends[:-1]), strict=True))

    def cut(self, counts: Sequence[int]) -> F32:
        return np.concatenate([self.forward({0: count})[0] for count in counts])


def plain(pooling: Pooling, ratio: int, inputs: int) -> npt.NDArray[np.float64]:
    """Return the results by the softmax of all scores that a token's pool has."""
    y = []
    for t in range(COUNT):
        start = t - t % ratio
        own = [(j, slice((inputs - 1) * CHANNELS, None)) for j in range(start, t + 1)]
        before = [(j, slice(0, CHANNELS)) for j in range(start - ratio, start) if inputs == 2 and j >= 0]
        pool = [*before, *own]
        scores = np.array([pooling.scores[j, s].astype(float) + pooling.bias[j % ratio, s] for j, s in pool])
        weights = np.exp(scores - scores.max(axis=0))
        values = np.array([pooling.values[j, s] for j, s in pool])
        y.append((weights * values).sum(axis=0) / weights.sum(axis=0))
    return np.array(y)


@pytest.mark.parametrize(("ratio", "inputs"), GROUPS)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_softmax_of_a_group_however_a_sequence_is_cut(
    place: tuple[str, str], ratio: int, inputs: int
) -> None:
    pooling = Pooling(place, ratio, inputs)
    whole = pooling.cut([COUNT])
    np.testing.assert_allclose(whole, plain(pooling, ratio, inputs), rtol=1e-4, atol=1e-5)
    pooling.cache.remove(0, 0)
    assert (pooling.cut([1, 40, 1, 24, 33, 51]) == whole).all()


@pytest.mark.parametrize(("ratio", "inputs"), GROUPS)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_removed_and_shared_tokens(place: tuple[str, str], ratio: int, inputs: int) -> None:
    pooling = Pooling(place, ratio, inputs)
    whole = pooling.cut([COUNT])
    pooling.cache.remove(0, 130)
    assert pooling.cache.length(0) == 130, "tokens of the open chunk cannot be removed"
    pooling.cache.copy_prefix(0, 1, 129)
    shared = pooling.cache.length(1)
    found = pooling.forward({1: COUNT - shared, 0: 20})
    assert shared == 128
    assert (found[1] == whole[128:]).all()
    assert (found[0] == whole[130:]).all()


def test_groups_that_do_not_fit_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="pooling: operands"):
        Pooling(PLACES[0], 12, 1)
    with pytest.raises(ValueError, match="pooling: operands"):
        Pooling(PLACES[0], 64, 2)
