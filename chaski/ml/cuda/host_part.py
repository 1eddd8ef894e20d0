"""The nodes of a graph that the host computes, as plans of its backend, and their cached results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chaski.ml.backend import Backend
from chaski.ml.cuda.lowering import Derived, Lowering, Made, Sizes, largest_of, staged_for
from chaski.ml.cuda.operations import HOST_OPERATIONS
from chaski.ml.graph import Graph, Tensor
from chaski.ml.plan import Plan

__all__ = ["add_host_parts"]

F32 = npt.NDArray[np.float32]

# The number of positions whose rows are cached. The rows of later positions are computed for each batch.
_MOST_KEPT = 1 << 17


def add_host_parts(graph: Graph, lowering: Lowering, host: Backend) -> list[Derived]:
    """Compile the nodes that depend on each input alone, and place their results among the uploads."""
    by_input: dict[str, list[Tensor]] = {}
    for node in graph.nodes:
        if node.op in HOST_OPERATIONS:
            (given,) = node.operands
            assert isinstance(given, Tensor)
            by_input.setdefault(given.attributes["name"], []).append(node)
    found = []
    for name, nodes in by_input.items():
        targets = [staged_for(node.op, node) for node in nodes]
        lowering.staged |= dict(zip(nodes, targets, strict=True))
        found.append(Derived(targets, _HostPart(name, nodes, host).make))
    return found


class _HostPart:
    """The nodes that depend on one input: (rows,) positions, or (rows, parts) coordinates.

    The results of a position are the same in every batch, so they are computed once and cached, unless
    positions have several parts.
    """

    def __init__(self, name: str, nodes: Sequence[Tensor], host: Backend) -> None:
        graph = Graph()
        (given,) = nodes[0].operands
        assert isinstance(given, Tensor)
        own = graph.input(name, given.shape, given.dtype)
        for index, node in enumerate(nodes):
            graph.output(str(index), graph.record(node.op, (own,), node.shape, **node.attributes))
        self._plan: Plan = host.compile(graph)
        host.load(lambda share: None)
        self._name, self._count = name, len(nodes)
        self._most = staged_for(name, given).rows
        self._keeps = len(given.shape) == 1
        self._kept: list[F32] = []
        self._filled = 0

    def make(self, inputs: Mapping[str, npt.NDArray[Any]], _: Sizes) -> Made:
        """Return the arrays of all nodes for a batch."""
        positions = inputs[self._name]
        last = largest_of(positions)
        if not self._keeps or last >= _MOST_KEPT or not len(positions):
            return self._computed(positions), {}
        if last >= self._filled:
            self._fill(last + 1)
        if len(positions) == 1:
            return [rows[last : last + 1] for rows in self._kept], {}
        return [rows[positions] for rows in self._kept], {}

    def _computed(self, positions: npt.NDArray[Any]) -> list[F32]:
        launch = self._plan.launch({self._name: positions})
        return [launch.rows(str(index)) for index in range(self._count)]

    def _fill(self, count: int) -> None:
        """Compute all rows up to `count`, and some ahead."""
        end = min(_MOST_KEPT, max(256, 2 * count))
        parts = [self._kept] if self._filled else []
        for begin in range(self._filled, end, self._most):
            positions = np.arange(begin, min(begin + self._most, end), dtype=np.int32)
            parts.append([rows.copy() for rows in self._computed(positions)])
        self._kept = [np.concatenate(rows) for rows in zip(*parts, strict=True)]
        self._filled = end
