"""State-space duality and selective scans: the plain recurrences, and the same bits however they are cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chaski.kvcache import Recurrent, RecurrentCache, StateShape, gated_delta
from chaski.kvcache.batch import Batch
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph
from tests.backends import FORMS

F32 = npt.NDArray[np.float32]
PLACES = [("reference", "auto"), *FORMS]
COUNT, GROUPS, HEADS, STATE, SIZE = 75, 2, 6, 12, 20
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "ssd": {"c": (GROUPS, STATE), "b": (GROUPS, STATE), "x": (HEADS, SIZE), "g": (HEADS,), "dt": (HEADS,)},
    "scan": {"x": (SIZE,), "dt": (SIZE,), "b": (STATE,), "c": (STATE,)},
}
RANDOM = np.random.default_rng(3)
D = RANDOM.standard_normal(HEADS).astype(np.float32)
A = -RANDOM.uniform(0, 2, (SIZE, STATE)).astype(np.float32)


def inputs(kind: str) -> dict[str, F32]:
    random = np.random.default_rng(1)
    found = {
        name: random.standard_normal((COUNT, *shape)).astype(np.float32)
        for name, shape in SHAPES[kind].items()
    }
    found["dt"] = abs(found["dt"])
    return found | ({"g": -abs(found["g"])} if kind == "ssd" else {})


def computed(kind: str, place: tuple[str, str], counts: Sequence[int]) -> F32:
    backend = open_backend(place[0], CPUOptions(threads=1, isa=place[1]))
    layer = gated_delta(key_heads=GROUPS, value_heads=HEADS, key_size=STATE, value_size=SIZE, taps=2)
    layer = layer if kind == "ssd" else Recurrent((StateShape(STATE, SIZE),))
    cache = RecurrentCache(backend, [layer], 1)
    graph, tokens = Graph(), Dim("tokens", COUNT)
    x = {
        name: graph.input(name, (tokens, int(np.prod(shape))), DType.F32).reshape(*shape)
        for name, shape in SHAPES[kind].items()
    }
    (kept,) = cache.record(graph, tokens)
    if kind == "ssd":
        heads = (x["c"], x["b"], x["x"], x["g"], x["dt"])
        y = ops.ssd(*heads, D, kept.states[1], kept.rows[1:], kept.segments)
    else:
        y = ops.selective_scan(x["x"], x["dt"], x["b"], x["c"], A, kept.states[0], kept.segments)
    graph.output("y", y)
    plan = backend.compile(graph)
    backend.load(lambda _: None)
    rows, begin = [], 0
    for count in counts:
        at = np.arange(begin, begin + count, dtype=np.int32)
        segments = cache.start_forward(Batch(at, at, np.zeros_like(at), at[-1:] - begin))["segments"]
        part = {name: array[at].reshape(count, -1) for name, array in inputs(kind).items()}
        rows.append(plan.launch({**part, "segments": segments}).rows("y").copy().reshape(count, -1))
        begin += count
    return np.concatenate(rows)


def plain(kind: str) -> npt.NDArray[np.float64]:
    x = {name: array.astype(np.float64) for name, array in inputs(kind).items()}
    y = []
    if kind == "scan":
        state = np.zeros((SIZE, STATE))
        for t in range(COUNT):
            state = np.exp(x["dt"][t][:, None] * A) * state
            state += np.outer(x["dt"][t] * x["x"][t], x["b"][t])
            y.append(state @ x["c"][t])
    else:
        groups = np.arange(HEADS) // (HEADS // GROUPS)
        states = np.zeros((HEADS, STATE, SIZE))
        for t in range(COUNT):
            value = x["dt"][t][:, None] * x["x"][t]
            states = np.exp(x["g"][t])[:, None, None] * states
            states += np.einsum("hs,hv->hsv", x["b"][t][groups], value)
            y.append((np.einsum("hsv,hs->hv", states, x["c"][t][groups]) + D[:, None] * x["x"][t]).ravel())
    return np.array(y)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("place", PLACES)
def test_the_plain_recurrence_however_it_is_cut(kind: str, place: tuple[str, str]) -> None:
    whole = computed(kind, place, [COUNT])
    np.testing.assert_allclose(whole, plain(kind), rtol=1e-5, atol=2e-5)
    assert (computed(kind, place, [1, 40, 1, 33]) == whole).all()
