"""The text of a value in a graph is short, however large the graph is."""

from __future__ import annotations

from chaski.ml import ops
from chaski.ml.graph import Dim, DType, Graph


def test_the_text_of_a_value_does_not_grow() -> None:
    graph = Graph()
    x = graph.input("x", (Dim("tokens", 4), 8), DType.F32)
    for _ in range(30):
        x = ops.multiply(x, x)
    assert len(repr(x)) < 200
    assert len(str(KeyError(x))) < 200
