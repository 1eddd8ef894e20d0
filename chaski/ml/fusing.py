"""Analysis of a graph: which nodes a backend can compute together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from chaski.ml.graph import Graph, Tensor

__all__ = ["sums_of_products", "uses_of"]


def uses_of(graph: Graph) -> Mapping[Tensor, int]:
    """Return how often each tensor is read, by other nodes or as a result."""
    uses = Counter(x for node in graph.nodes for x in node.operands if isinstance(x, Tensor))
    uses.update(graph.outputs.values())
    return uses


def sums_of_products(
    graph: Graph, uses: Mapping[Tensor, int], products: Collection[str]
) -> dict[Tensor, Tensor]:
    """Return the products that can include a sum, which must be their only reader: product -> sum."""
    taken: dict[Tensor, Tensor] = {}
    for node in graph.nodes:
        if node.op == "add":
            for operand in reversed(node.operands):
                if isinstance(operand, Tensor) and operand.op in products and uses[operand] == 1:
                    taken[operand] = node
                    break
    return taken
