"""Computation of pieces with independent rows in chunks of a few rows, which saves memory.

A plan keeps memory for its largest batch, and a model that is split by rows has several plans per layer.
Attention reads the keys and values of other rows of its batch, so all rows are stored before attention is
computed. Rows of experts are sorted over a whole batch, and are not cut into chunks. Results are
bit-identical with and without chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from chaski.ml.cached_ops import ATTENTION, CONTENTS, stored
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Dim, Graph, KVBuffer, Operand, Tensor, width

__all__ = ["ROWS", "Chunks", "in_chunks", "row_parts"]

ROWS = 64
"""Rows of a chunk. Products are no faster with more rows."""

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
        *("concat", "top_k", "router", "scale_experts", "adapt"),
        *("hadamard", "store", "stored", "attention", "attention_by_distance"),
    }
)
# The index of attention's operand that lists cells, which are not rows of the batch.
_CELLS = 3


class Chunks(Struct, frozen=True):
    """A graph for up to `ROWS` rows at once, and equivalent graphs for more rows, one after the other.

    `dim` names the dimension of the rows. Every chunk receives the inputs of other dimensions whole.
    """

    small: Graph
    stages: Sequence[Graph]
    dim: str

    def is_cut(self, graph: Graph, name: str) -> bool:
        """Return whether an input of one of the graphs is cut into the rows of chunks."""
        leading = graph.inputs[name].shape[0]
        return isinstance(leading, Dim) and leading.name == self.dim


def row_parts(count: int) -> Iterator[tuple[int, slice]]:
    """Yield the number and the rows of each part of `count` rows that is computed and sent separately."""
    for number, begin in enumerate(range(0, count, ROWS)):
        yield number, slice(begin, min(begin + ROWS, count))


def in_chunks(graph: Graph) -> Chunks | None:
    """Return a graph in chunks; None if it needs all rows of a batch at once."""
    dim = _dim_of_rows(graph)
    if dim is None or dim.maximum <= ROWS:
        return None
    late = _behind_attention(graph)
    if any(node.op == "store" for node in late):
        return None
    small = _part(graph, graph.nodes, dim)
    if not late:
        return Chunks(small, [small], dim.name)
    early = [node for node in graph.nodes if node not in late]
    return Chunks(small, [_part(graph, early, dim), _part(graph, list(late), dim)], dim.name)


def _dim_of_rows(graph: Graph) -> Dim | None:
    """Return the dimension that all nodes share, except nodes that are only read as lists of cells."""
    cells = {node.operands[_CELLS] for node in graph.nodes if node.op in ATTENTION}
    others = {x for node in graph.nodes if node.op not in ATTENTION for x in node.operands}
    rows = [node for node in graph.nodes if node.op not in CONTENTS and (node not in cells or node in others)]
    leading = {node.shape[0] for node in rows}
    if len(leading) != 1 or not all(node.op in _BY_ROW for node in graph.nodes):
        return None
    (dim,) = leading
    return dim if isinstance(dim, Dim) else None


def _behind_attention(graph: Graph) -> dict[Tensor, None]:
    """Return the nodes of attention, and all nodes that are computed from them."""
    late: dict[Tensor, None] = {}
    for node in graph.nodes:
        if node.op in ATTENTION or any(operand in late for operand in node.operands):
            late[node] = None
    return late


def _part(graph: Graph, nodes: Collection[Tensor], dim: Dim) -> Graph:
    """Return some nodes as a graph for few rows. The results of other nodes that they read become inputs."""
    own = set(nodes)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    copy = Graph(graph.dtype, product_types=graph.product_types)
    known: dict[Tensor, Tensor] = {}

    def found(operand: Operand) -> Operand:
        if not isinstance(operand, Tensor):
            return operand
        if operand not in known:
            known[operand] = _given(operand)
        return known[operand]

    def _given(node: Tensor) -> Tensor:
        if node.op in CONTENTS:
            buffer = node.operands[-1]
            assert isinstance(buffer, KVBuffer)
            return stored(copy, buffer, width(node) // buffer.heads)
        name = node.attributes["name"] if node.op == "input" else f"early {numbers[node]}"
        return copy.input(name, _rows(node, dim), node.dtype)

    for node in graph.nodes:
        if node in own and node.op != "input":
            operands = tuple(map(found, node.operands))
            known[node] = copy.record(node.op, operands, _rows(node, dim), node.dtype, **node.attributes)
    for name, node in graph.outputs.items():
        if node in own:
            copy.output(name, known[node])
    for node, name in _read_later(graph, own, numbers).items():
        copy.output(name, known[node])
    return copy


def _read_later(graph: Graph, own: Collection[Tensor], numbers: Mapping[Tensor, int]) -> Mapping[Tensor, str]:
    """Return the nodes of a part that nodes outside it read, with the names of the inputs there."""
    found: dict[Tensor, str] = {}
    for node in graph.nodes:
        for operand in node.operands:
            if node in own or not isinstance(operand, Tensor) or operand not in own:
                continue
            if operand.op not in ("input", *CONTENTS):
                found[operand] = f"early {numbers[operand]}"
    return found


def _rows(node: Tensor, dim: Dim) -> tuple[int | Dim, ...]:
    """Return a node's shape with the rows of a chunk."""
    return (Dim(dim.name, ROWS) if node.shape[0] == dim else node.shape[0], *node.shape[1:])
