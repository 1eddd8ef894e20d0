"""State spaces and delta rules of states with separate decays: the same bits however they are cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chaski.kvcache import Recurrent, RecurrentCache, StateShape, gated_delta, matrix_states
from chaski.kvcache.batch import Batch
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph
from tests.backends import FORMS

F32 = npt.NDArray[np.float32]
PLACES = [("reference", "auto"), *FORMS]
COUNT, GROUPS, HEADS, STATE, SIZE, WIDE = 75, 2, 6, 12, 20, 90
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "ssd": {"c": (GROUPS, STATE), "b": (GROUPS, STATE), "x": (HEADS, SIZE), "g": (HEADS,), "dt": (HEADS,)},
    "scan": {"x": (SIZE,), "dt": (SIZE,), "b": (STATE,), "c": (STATE,)},
    "delta": {**dict.fromkeys("rwkab", (HEADS, STATE)), "v": (HEADS, WIDE)},
    "linear": {**dict.fromkeys("rwk", (HEADS, STATE)), "v": (HEADS, SIZE)},
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
    if "w" in found:
        found |= {name: 0.3 * found[name] for name in "kab" if name in found}
        return found | {"w": np.exp(-abs(found["w"]))}
    found["dt"] = abs(found["dt"])
    return found | ({"g": -abs(found["g"])} if kind == "ssd" else {})


def kind_of(kind: str) -> Recurrent:
    if kind == "ssd":
        return gated_delta(key_heads=GROUPS, value_heads=HEADS, key_size=STATE, value_size=SIZE, taps=2)
    return Recurrent(
        (StateShape(STATE, SIZE) if kind == "scan" else matrix_states(HEADS, STATE, SHAPES[kind]["v"][1]),)
    )


def computed(kind: str, place: tuple[str, str], counts: Sequence[int]) -> F32:
    backend = open_backend(place[0], CPUOptions(threads=1, isa=place[1]))
    cache = RecurrentCache(backend, [kind_of(kind)], 1)
    graph, tokens = Graph(), Dim("tokens", COUNT)
    x = {
        name: graph.input(name, (tokens, int(np.prod(shape))), DType.F32).reshape(*shape)
        for name, shape in SHAPES[kind].items()
    }
    (kept,) = cache.record(graph, tokens)
    if kind == "ssd":
        heads = (x["c"], x["b"], x["x"], x["g"], x["dt"])
        y = ops.ssd(*heads, D, kept.states[1], kept.rows[1:], kept.segments)
    elif "w" in x:
        correction = (x["a"], x["b"]) if "a" in x else None
        y = ops.generalized_delta(x["r"], x["w"], x["k"], x["v"], kept.states[0], kept.segments, correction)
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
    elif "w" in x:
        zeros = np.zeros_like(x["k"])
        a, b = x.get("a", zeros), x.get("b", zeros)
        states = np.zeros((HEADS, STATE, x["v"].shape[2]))
        for t in range(COUNT):
            taken = np.einsum("hk,hv->hkv", b[t], np.einsum("hkv,hk->hv", states, a[t]))
            states = x["w"][t][:, :, None] * states + taken + np.einsum("hk,hv->hkv", x["k"][t], x["v"][t])
            y.append(np.einsum("hkv,hk->hv", states, x["r"][t]).ravel())
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
