"""Splitting by rows: each member has some output rows of every matrix, and the heads that they produce.

No sum crosses members, so no bit changes: an operation that reads a whole row waits until the members' parts
are joined. Every member computes the operations that this module does not mention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from chaski.formats.gguf import TensorInfo
from chaski.ml import ops
from chaski.ml.cached_ops import ATTENTION, CONTENTS
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.free_nodes import FreeNodes
from chaski.ml.graph import Graph, KVBuffer, KVRole, Shape, Tensor, Weight
from chaski.ml.products import PRODUCTS, matrix_weight
from chaski.ml.rewriting import rewritten
from chaski.ml.sharded.placement import Held, HeldBuffer, HeldWeight, Owned, Placed, Units, cuts

__all__ = ["RowSplit", "without_first_outputs"]

Axes = Mapping[Tensor, int | None]

_WITH_MATRICES = (*PRODUCTS, "product")


class RowSplit:
    """A split of all matrices by rows. Heads are cut if their number is a multiple of the sum of all units.

    Experts are cut along their rows, so that the division of work does not depend on the choice of experts.
    """

    def __init__(self, units: Units) -> None:
        self.units = units
        self._members = len(units)
        self._held: dict[Weight, Sequence[HeldWeight]] = {}

    @property
    def description(self) -> str:
        is_even = len(set(self.units)) == 1
        return f"rows of {self._members}" if is_even else f"rows to {', '.join(map(str, self.units))}"

    @property
    def held(self) -> Held:
        return self._held

    def place(
        self, weights: Sequence[tuple[Weight, TensorInfo]]
    ) -> Sequence[Sequence[tuple[Weight, TensorInfo]]]:
        on_each: list[list[tuple[Weight, TensorInfo]]] = [[] for _ in range(self._members)]

        def add(member: int, weight: Weight, info: TensorInfo) -> Weight:
            own = Weight(
                info.shape,
                plain=weight.plain,
                constant=weight.constant,
                name=info.name,
                handle=len(on_each[member]),
            )
            on_each[member].append((own, info))
            return own

        for weight, info in weights:
            axis = self._axis(weight)
            held: list[HeldWeight] = []
            for member in range(self._members):
                whole = part = None
                if axis is None or len(weight.shape) == 1:
                    whole = add(member, weight, info)
                if axis is not None:
                    begin, end = cuts(weight.shape[axis], self.units)[member]
                    part = add(
                        member, weight, info.part(f"{info.name}[{begin}:{end}]", axis, slice(begin, end))
                    )
                held.append(HeldWeight(whole, part))
            self._held[weight] = held
        return on_each

    def heads(self, role: KVRole, heads: int, layer: int | None) -> Sequence[int]:
        is_cut = role is not KVRole.STATES and heads % sum(self.units) == 0
        return [heads // sum(self.units) * own if is_cut else heads for own in self.units]

    def prepared(self, graph: Graph) -> Graph:
        return without_first_outputs(graph)

    def place_nodes(self, graph: Graph, free: FreeNodes) -> Mapping[Tensor, Placed]:
        placed: dict[Tensor, Placed] = {}
        axes: dict[Tensor, int | None] = {}
        read = {operand for node in graph.nodes for operand in node.operands}
        for node in graph.nodes:
            if not free.has(node):
                top = None if node in read else self._top_of_parts(node, axes)
                placed[node] = top or self._placed(node, axes)
                axes[node] = placed[node].axis
        return placed

    def _axis(self, weight: Weight) -> int | None:
        """Return the axis of a weight's rows; None if it cannot be cut or has too few rows."""
        if weight.split is None:
            return None
        is_of_experts = len(weight.shape) == 3 or (weight.plain and weight.split == 0)
        axis = 1 if is_of_experts else weight.split
        return axis if weight.shape[axis] >= sum(self.units) else None

    def _placed(self, node: Tensor, axes: Axes) -> Placed:
        everybody = range(self._members)
        if node.op == "embedding" and self._has_part(node.operands[1]):
            ids, table = node.operands
            assert isinstance(ids, Tensor)
            assert isinstance(table, Weight)
            owned = Owned(ids, cuts(table.shape[0], self.units))
            return Placed(everybody, None, [None, None], True, owned)
        axis, needs = self._rule(node, axes)
        needs = [*needs, *[None] * (len(node.operands) - len(needs))]
        return Placed(everybody, axis, needs, axis is not None and node.op in (*_WITH_MATRICES, *ATTENTION))

    def _top_of_parts(self, node: Tensor, axes: Axes) -> Placed | None:
        """Place a `top_k` by parts: the reader of the result merges the largest elements of each part."""
        if node.op != "top_k" or axes.get(_tensor(node, 0)) != 1:
            return None
        size = _tensor(node, 0).shape[1]
        assert isinstance(size, int)
        smallest = min(end - begin for begin, end in cuts(size, self.units))
        fits = smallest >= node.attributes["max_k"]
        return Placed(range(self._members), None, [1, None]) if fits else None

    def _rule(self, node: Tensor, axes: Axes) -> tuple[int | None, Sequence[int | None]]:
        """Return the axis along which a node's result is cut, and the axes for its first operands."""
        if node.op in ELEMENTWISE or _has_factors_of_heads(node):
            return self._elementwise(node, axes)
        if node.op in _WITH_MATRICES:
            return (len(node.shape) - 1 if self._has_part(matrix_weight(node)) else None), []
        if node.op in ATTENTION:
            axis = axes[_tensor(node, 1)]
            return axis, [axis, axis, axis]
        if node.op in CONTENTS:
            axis = 1 if _is_cut(node) else None
            return axis, [axis] if node.op == "store" else []
        if node.op == "adapt":
            axis = axes[_tensor(node, 0)]
            return axis, [axis]
        rule = _RULES.get(node.op)
        if rule is None:
            return None, []
        axis = axes.get(_tensor(node, 0))
        result = None if axis is None else rule(node, axis, self.units)
        return result, [None if result is None else axis]

    def _elementwise(self, node: Tensor, axes: Axes) -> tuple[int | None, Sequence[int | None]]:
        known = {axes.get(operand) for operand in node.operands if isinstance(operand, Tensor)}
        if known == {None} or len(known - {None}) > 1:
            return None, []
        (axis,) = known - {None}
        return axis, [axis] * len(node.operands)

    def _has_part(self, weight: object) -> bool:
        return isinstance(weight, Weight) and self._held[weight][0].part is not None


def _has_factors_of_heads(node: Tensor) -> bool:
    return node.op == "scale_rows" and _tensor(node, 1).shape[1] != 1


Rule = Callable[[Tensor, int, Units], int | None]
"""Returns the axis along which a node's result is cut, given that of its first operand, and the units."""


def _same(node: Tensor, axis: int, units: Units) -> int | None:
    return axis


def _but_the_last(node: Tensor, axis: int, units: Units) -> int | None:
    """Keep the axis unless it is the last dimension, which the operation must read completely."""
    return axis if axis < len(node.shape) - 1 else None


def _reshaped(node: Tensor, axis: int, units: Units) -> int | None:
    source, target = _tensor(node, 0).shape, node.shape
    return 1 if axis == 1 and _places(source, units) == _places(target, units) else None


def _places(shape: Shape, units: Units) -> Sequence[int]:
    """Return the ends of the parts along the first dimension after the rows, in elements of a row."""
    size, *inner = (size for size in shape[1:] if isinstance(size, int))
    return [end * math.prod(inner) for _, end in cuts(size, units)]


def _dispatched(node: Tensor, axis: int, units: Units) -> int | None:
    return axis + 1


def _combined(node: Tensor, axis: int, units: Units) -> int | None:
    return axis - 1 if axis > 1 else None


_RULES: Mapping[str, Rule] = {
    "rms_norm": _but_the_last,
    "layer_norm": _but_the_last,
    "rope": _but_the_last,
    "hadamard": _but_the_last,
    "slice": _but_the_last,
    "scale_rows": _same,
    "rows": _same,
    "reshape": _reshaped,
    "dispatch": _dispatched,
    "scale_by_expert": _same,
    "combine": _combined,
}


def _tensor(node: Tensor, index: int) -> Tensor:
    operand = node.operands[index]
    assert isinstance(operand, Tensor)
    return operand


def _is_cut(node: Tensor) -> bool:
    buffer = node.operands[-1]
    assert isinstance(buffer, KVBuffer)
    assert isinstance(buffer.handle, HeldBuffer), "a buffer of another backend"
    return buffer.handle.is_cut


def without_first_outputs(graph: Graph) -> Graph:
    """Return the graph with each `first_outputs` replaced by the whole product and a slice of it.

    The first rows of a matrix are not distributed evenly over the members.
    """

    def whole(x: Tensor, matrix: Weight, *, count: int) -> Tensor:
        y = x.graph.record("linear", (x, matrix), (x.shape[0], matrix.shape[0]))
        return ops.slice(y, 0, count)

    return rewritten(graph, "first_outputs", whole)
