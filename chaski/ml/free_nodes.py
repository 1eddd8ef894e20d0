"""The nodes of a graph that every part of it computes for itself when the graph is cut."""

from __future__ import annotations

from chaski.ml.graph import Operand, Tensor

__all__ = ["FreeNodes"]

_CHEAP = ("input", "rope_table", "position_scale", "scale_rows", "reshape")


class FreeNodes:
    """The nodes of a graph that depend only on its inputs and are cheap to compute."""

    def __init__(self) -> None:
        self._known: dict[Tensor, bool] = {}

    def has(self, node: Operand) -> bool:
        """Return whether every part computes a node for itself."""
        if not isinstance(node, Tensor):
            return False
        if node not in self._known:
            cheap = node.op in _CHEAP and all(self.has(operand) for operand in node.operands)
            self._known[node] = cheap
        return self._known[node]
