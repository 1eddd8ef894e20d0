"""The digest of a graph depends on its computation, but not on its maximum sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph, KVRole, Rope, Tensor, Weight
from chaski.ml.graph_digest import graph_digest
from chaski.ml.reference import ReferenceBackend

FREQUENCIES = np.linspace(1, 0.1, 4, dtype=np.float32)


def graph(
    *,
    room: int = 8,
    cells: int = 32,
    name: str = "w",
    eps: float = 1e-5,
    base: float = 1.0,
    scale: float = 2.0,
) -> Graph:
    made = Graph()
    tokens = Dim("tokens", room)
    x = made.input("x", (tokens, 8), DType.F32)
    places = made.input("cells", (tokens,), DType.I32)
    weight = Weight((8, 8), name=name)
    table = ops.rope_table(places, Rope(FREQUENCIES * np.float32(base)))
    keys = ReferenceBackend().kv_buffer(KVRole.KEYS, cells, 1, 8, DType.F32)
    y: Tensor = ops.rope(ops.rms_norm(ops.linear(x, weight), None, eps).reshape(1, 8), table)
    ops.store(y, places, keys)
    made.output("y", y.reshape(8) * scale)
    return made


def test_room_makes_no_difference() -> None:
    assert graph_digest(graph()) == graph_digest(graph(room=512, cells=4096))


CHANGES: dict[str, Callable[[], Graph]] = {
    "name of a weight": lambda: graph(name="v"),
    "number": lambda: graph(eps=1e-6),
    "frequencies": lambda: graph(base=1.0001),
    "factor": lambda: graph(scale=2.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_computed_does(change: str) -> None:
    assert graph_digest(CHANGES[change]()) != graph_digest(graph())


def test_a_value_that_has_no_digest_is_refused() -> None:
    made = graph()
    made.record("strange", (), (1,), what=object())
    with pytest.raises(TypeError, match="no digest can be made of object"):
        graph_digest(made)
