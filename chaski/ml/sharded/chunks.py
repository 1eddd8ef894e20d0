"""Pieces whose rows have nothing to do with each other are computed some rows at a time, in little memory.

A plan keeps memory for its largest batch, and by rows a layer has several plans. Results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Dim, Graph, Operand, Tensor

__all__ = ["ROWS", "in_chunks"]

ROWS = 64
"""Rows of a chunk: enough for products to be as fast as with more."""

_BY_ROW = frozenset(
    {
        *ELEMENTWISE,
        *(
            "input",
            "reshape",
            "embedding",
            "linear",
            "product",
            "rms_norm",
            "layer_norm",
            "rope_table",
            "rope",
        ),
        *("position_scale", "scale_rows", "add_vector", "multiply_vector", "rms", "gaussian_top_k", "slice"),
        *("concat", "top_k", "router", "scale_experts", "group_by_expert", "dispatch", "expert_linear"),
        *("combine", "store", "stored"),
    }
)


def in_chunks(graph: Graph) -> Graph | None:
    """Return the graph for at most `ROWS` rows; None where it has to see all rows of a batch at once.

    It may store keys and values, but what it stores it does not read.
    """
    leading = {node.shape[0] for node in graph.nodes if node.op not in ("store", "stored")}
    if len(leading) != 1 or not all(node.op in _BY_ROW for node in graph.nodes):
        return None
    (dim,) = leading
    if not isinstance(dim, Dim) or dim.maximum <= ROWS:
        return None
    return _smaller(graph, dim, Dim(dim.name, ROWS))


def _smaller(graph: Graph, dim: Dim, smaller: Dim) -> Graph:
    copy = Graph(graph.dtype, product_types=graph.product_types)
    known: dict[Tensor, Tensor] = {}

    def operands(node: Tensor) -> Iterator[Operand]:
        for operand in node.operands:
            yield known[operand] if isinstance(operand, Tensor) else operand

    for node in graph.nodes:
        shape = (smaller if node.shape[0] == dim else node.shape[0], *node.shape[1:])
        if node.op == "input":
            known[node] = copy.input(node.attributes["name"], shape, node.dtype)
        else:
            known[node] = copy.record(node.op, tuple(operands(node)), shape, node.dtype, **node.attributes)
    for name, node in graph.outputs.items():
        copy.output(name, known[node])
    return copy
