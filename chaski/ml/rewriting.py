"""Copies of graphs in which other operations replace those of a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaski.ml.graph import Graph, Tensor

__all__ = ["rewritten"]


def rewritten(graph: Graph, op: str, replacement: Callable[..., Tensor]) -> Graph:
    """Return the graph with each node `op` replaced by `replacement` of its operands and attributes.

    A graph without such nodes is returned as it is. `replacement` records in the graph of its operands.
    """
    if all(node.op != op for node in graph.nodes):
        return graph
    copy = Graph(graph.dtype, product_types=graph.product_types)
    known: dict[Tensor, Tensor] = {}
    for node in graph.nodes:
        operands: Any = tuple(known[x] if isinstance(x, Tensor) else x for x in node.operands)
        if node.op == op:
            known[node] = replacement(*operands, **node.attributes)
        elif node.op == "input":
            known[node] = copy.input(node.attributes["name"], node.shape, node.dtype)
        else:
            known[node] = copy.record(node.op, operands, node.shape, node.dtype, **node.attributes)
    for name, node in graph.outputs.items():
        copy.output(name, known[node])
    return copy
