"""Rounding of a graph's values to int8: which values are rounded, and in which blocks.

A product with a quantized matrix rounds its rows by the rule of `native/include/matmul.h`: in super-blocks of
256 elements if any matrix of the graph needs them and the rows consist of whole ones, else in blocks of 32.
All backends use this module, so they agree on the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from chaski import _native
from chaski.formats.quant import QuantType
from chaski.ml.graph import Graph, Operand, Tensor, Weight
from chaski.ml.products import PRODUCTS, matrix_weight

__all__ = ["BLOCK", "SUPER_BLOCK", "Rounding", "TypeOf", "product_types"]

BLOCK, SUPER_BLOCK = 32, 256
"""Elements that are rounded with one scale."""

TypeOf = Callable[[Weight], QuantType]
"""Returns the type in which a matrix is stored."""


def product_types(graph: Graph, type_of: TypeOf) -> frozenset[QuantType]:
    """Return the types of all matrices of products, including those in `graph.product_types`."""
    matrices = {matrix_weight(node) for node in graph.nodes if node.op in PRODUCTS}
    return graph.product_types.union(map(type_of, matrices))


class Rounding:
    """The values that the nodes of a graph read as int8, and the values that they read as floats.

    A reshaped value is read like its source. So are rows that `dispatch` sorts for products of experts.

    products         the products that round their rows
    dispatched       the `dispatch` nodes whose rows only products read
    in_super_blocks  whether rows of whole super-blocks are rounded in those
    floats           values that are outputs of the graph, or that an operation reads without rounding
    columns          values that products round, each with the length of the rows that they read
    """

    def __init__(self, graph: Graph, type_of: TypeOf) -> None:
        self._graph = graph
        self.products: Collection[Tensor] = frozenset(
            node
            for node in graph.nodes
            if node.op in PRODUCTS and type_of(matrix_weight(node)).block_size > 1
        )
        self.dispatched: Collection[Tensor] = _dispatched(graph)
        self.in_super_blocks = any(map(_needs_super_blocks, product_types(graph, type_of)))
        self._floats = set[Tensor](graph.outputs.values())
        self._columns: dict[Tensor, set[int]] = {}
        for node in reversed(graph.nodes):
            first, *others = node.operands or (None,)
            self._read_first(node, first)
            self._floats.update(operand for operand in others if isinstance(operand, Tensor))
        self.floats: Collection[Tensor] = self._floats
        self.columns: Mapping[Tensor, int] = {value: min(found) for value, found in self._columns.items()}

    def _read_first(self, node: Tensor, operand: Operand | None) -> None:
        """Record how a node reads its first operand, after all readers of the node have been recorded."""
        if not isinstance(operand, Tensor):
            return
        is_passed_on = node.op == "reshape" or node in self.dispatched
        if node in self.products:
            self._columns.setdefault(operand, set()).add(matrix_weight(node).shape[-1])
        elif is_passed_on and node in self._columns:
            self._columns.setdefault(operand, set()).update(self._columns[node])
        reads_floats = node in self._floats if is_passed_on else node not in self.products
        if reads_floats:
            self._floats.add(operand)

    def block(self, columns: int) -> int:
        """Return the block size for rows of `columns` elements: `SUPER_BLOCK` or `BLOCK`."""
        return SUPER_BLOCK if self.in_super_blocks and columns % SUPER_BLOCK == 0 else BLOCK

    def blocks(self) -> Mapping[Tensor, int]:
        """Return the values that are read only as int8 with one block size, and that size."""
        found = {
            value: set(map(self.block, columns))
            for value, columns in self._columns.items()
            if value not in self._floats
        }
        return {value: min(sizes) for value, sizes in found.items() if len(sizes) == 1}


def _needs_super_blocks(type: QuantType) -> bool:
    return _native.wants_super_blocks(int(type))


def _dispatched(graph: Graph) -> frozenset[Tensor]:
    readers: dict[Operand, set[str]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            readers.setdefault(operand, set()).add(node.op)
    return frozenset(
        node
        for node in graph.nodes
        # With three operands, the rows are multiplied by the weights of their routes.
        if node.op == "dispatch" and len(node.operands) == 2 and readers.get(node, {""}) <= PRODUCTS.keys()
    ).difference(graph.outputs.values())
