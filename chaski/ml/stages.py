"""A graph computed stage by stage, each stage in pieces of its rows, so that few rows need memory at a time.

Attention divides the stages: all pieces store their keys and values before any piece attends to them. Other
operations compute each row by itself, so the bits are those of the whole graph. Values between two stages
stay on the host, and `rows` between two dimensions is read there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.formats.quant import QuantType
from chaski.ml.backend import Backend
from chaski.ml.cached_ops import ATTENTION, CONTENTS, stored
from chaski.ml.free_nodes import FreeNodes
from chaski.ml.graph import Dim, Graph, KVBuffer, Operand, Shape, Tensor, Weight, width
from chaski.ml.plan import Plan
from chaski.ml.rounding import product_types

__all__ = ["StagedPlan", "narrowed"]

Array = npt.NDArray[Any]
Pieces = Mapping[str, int]
"""The most rows of a piece, by the name of the dimension."""


class _Stage(Struct, frozen=True):
    """A part of a graph whose nodes have the dimension `dim`. `outputs`: values that later stages read."""

    plan: Plan
    dim: str
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]
    last_read: Sequence[str]


class StagedPlan:
    """A graph whose dimensions in `pieces` are computed in pieces. Every output has one of these dimensions.

    Compiling it reserves memory for the pieces. The values between stages take memory while it runs.
    """

    def __init__(self, graph: Graph, backend: Backend, pieces: Pieces) -> None:
        self._pieces = pieces
        self._cut = _Cut(graph)
        types = product_types(graph, _type_of)
        parts = [(part, _part(graph, part, pieces, types)) for part in self._cut.parts]
        read = [
            {self._cut.read(name) for name in part.inputs if name not in graph.inputs} for _, part in parts
        ]
        self._stages = []
        for number, (nodes, part) in enumerate(parts):
            later = set[str]().union(*read[number + 1 :])
            dim = next(iter(nodes)).shape[0]
            assert isinstance(dim, Dim)
            inputs = {name: self._cut.source(name, graph) for name in part.inputs}
            done = [name for name in read[number] if name not in later]
            self._stages.append(_Stage(backend.compile(part), dim.name, inputs, list(part.outputs), done))

    def run(self, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
        """Return the outputs for a value of every input. `sizes`: the rows of each dimension in pieces."""
        values = dict[str, Array]()
        for stage in self._stages:
            found: dict[str, list[Array]] = {name: [] for name in stage.outputs}
            count, most = sizes[stage.dim], self._pieces[stage.dim]
            for begin in range(0, count, most):
                piece = slice(begin, min(begin + most, count))
                given = {
                    name: self._given(name, node, stage, piece, inputs, values)
                    for name, node in stage.inputs.items()
                }
                launch = stage.plan.launch(given, {stage.dim: piece.stop - piece.start})
                for name, rows in found.items():
                    rows.append(launch.rows(name).reshape(piece.stop - begin, -1).copy())
            values |= {name: np.concatenate(rows) for name, rows in found.items()}
            for name in stage.last_read:
                values.pop(name, None)
        return values

    def _given(
        self,
        name: str,
        node: Tensor,
        stage: _Stage,
        piece: slice,
        inputs: Mapping[str, Array],
        values: Mapping[str, Array],
    ) -> Array:
        if node.op == "input":
            leading = node.shape[0]
            is_cut = isinstance(leading, Dim) and leading.name == stage.dim
            return inputs[name][piece] if is_cut else inputs[name]
        whole = values[self._cut.read(name)]
        if _is_gather(node):
            indices = node.operands[1]
            assert isinstance(indices, Tensor)
            rows = whole[inputs[indices.attributes["name"]][piece]]
        else:
            rows = whole[piece]
        return np.ascontiguousarray(rows)


class _Cut:
    """The stages of the nodes of a graph, as `parts`: sets of nodes in the order in which they can run."""

    def __init__(self, graph: Graph) -> None:
        self.free = FreeNodes()
        self._numbers = {node: number for number, node in enumerate(graph.nodes)}
        self._nodes = graph.nodes
        levels = self._late(graph, self._early(graph))
        by_stage: dict[tuple[int, str], dict[Tensor, None]] = {}
        for node, level in levels.items():
            dim = node.shape[0] if node.op != "store" else _first(node).shape[0]
            assert isinstance(dim, Dim)
            by_stage.setdefault((level, dim.name), {})[node] = None
        self.parts = [by_stage[key] for key in sorted(by_stage, key=lambda key: key[0])]

    def name(self, node: Tensor) -> str:
        """Return the name of a value between two stages."""
        return f"value {self._numbers[node]}"

    def source(self, name: str, graph: Graph) -> Tensor:
        """Return the node that an input of a stage stands for."""
        return graph.inputs[name] if name in graph.inputs else self._nodes[int(name.split()[1])]

    def read(self, name: str) -> str:
        """Return the value that an input of a stage is, or is gathered from."""
        node = self._nodes[int(name.split()[1])]
        return self.name(_first(node)) if _is_gather(node) else name

    def _early(self, graph: Graph) -> dict[Tensor, int]:
        """Return the first stage in which each node can be computed, without nodes that are not computed."""
        levels: dict[Tensor, int] = {}
        attended: dict[KVBuffer, int] = {}
        for node in graph.nodes:
            if self.free.has(node):
                continue
            tensors = [x for x in node.operands if isinstance(x, Tensor)]
            level = max((levels[x] for x in tensors if x in levels), default=0)
            stores = [x for x in tensors if x.op == "store"]
            if node.op in ATTENTION:
                level = max(level, *(levels[x] + 1 for x in stores))
                attended |= {_buffer(x): level for x in stores}
            elif node.op == "store":
                level = max(level, attended.get(_buffer(node), -1) + 1)
            levels[node] = level + _is_gather(node)
        return levels

    def _late(self, graph: Graph, levels: dict[Tensor, int]) -> dict[Tensor, int]:
        """Return the last stage for each node before gathers, so that attention is in a stage by itself."""
        readers: dict[Operand, list[Tensor]] = {}
        for node in graph.nodes:
            for operand in node.operands:
                readers.setdefault(operand, []).append(node)
        moved = dict(levels)
        fixed = {node for node in graph.nodes if node.op in (*ATTENTION, *CONTENTS)}
        fixed |= {*graph.outputs.values()}
        storing = {_first(node).shape[0] for node in graph.nodes if node.op == "store"}
        for node in reversed(graph.nodes):
            if node in levels and node not in fixed and node.shape[0] in storing:
                limits = [moved[x] - _is_gather(x) for x in readers.get(node, ()) if x in moved]
                moved[node] = min(limits, default=levels[node])
        return {node: level for node, level in moved.items() if not _is_gather(node)}


def _first(node: Tensor) -> Tensor:
    first = node.operands[0]
    assert isinstance(first, Tensor)
    return first


def _buffer(node: Tensor) -> KVBuffer:
    buffer = node.operands[-1]
    assert isinstance(buffer, KVBuffer)
    return buffer


def _is_gather(node: Tensor) -> bool:
    """Return whether a node reads rows of another dimension than its own."""
    return node.op == "rows" and _first(node).shape[0] != node.shape[0]


def _type_of(weight: Weight) -> QuantType:
    assert weight.type is not None, f"{weight.name} is not bound"
    return weight.type


def _narrow(shape: Shape, pieces: Pieces) -> Shape:
    leading = shape[0]
    if isinstance(leading, Dim) and leading.name in pieces:
        return Dim(leading.name, min(pieces[leading.name], leading.maximum)), *shape[1:]
    return shape


def narrowed(graph: Graph, pieces: Pieces) -> Graph:
    """Return a graph for at most as many rows as `pieces` names for each dimension."""
    return _part(graph, dict.fromkeys(graph.nodes), pieces, frozenset())


def _part(graph: Graph, nodes: Collection[Tensor], pieces: Pieces, types: frozenset[QuantType]) -> Graph:
    """Return some nodes as a graph for few rows. Inputs and outputs include the values of other stages."""
    copy = Graph(graph.dtype, product_types=types)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    free, known = FreeNodes(), dict[Tensor, Tensor]()

    def found(operand: Operand) -> Operand:
        if not isinstance(operand, Tensor):
            return operand
        if operand not in known:
            known[operand] = given(operand)
        return known[operand]

    def given(node: Tensor) -> Tensor:
        shape = _narrow(node.shape, pieces)
        if node.op == "input":
            return copy.input(node.attributes["name"], shape, node.dtype)
        if node in nodes or free.has(node):
            return copy.record(
                node.op, tuple(map(found, node.operands)), shape, node.dtype, **node.attributes
            )
        if node.op in CONTENTS:
            return stored(copy, _buffer(node), width(node) // _buffer(node).heads)
        value = copy.input(f"value {numbers[node]}", (shape[0], width(node)), node.dtype)
        return value if len(shape) == 2 else copy.record("reshape", (value,), shape, node.dtype)

    for node in graph.nodes:
        if node in nodes:
            found(node)
    read = {x for node in graph.nodes if node not in nodes for x in node.operands if isinstance(x, Tensor)}
    for node in nodes:
        if node in read and node.op not in CONTENTS and not free.has(node):
            copy.output(f"value {numbers[node]}", known[node])
    for name, node in graph.outputs.items():
        if node in nodes:
            copy.output(name, known[node])
    return copy
