"""The state of lowering a graph: the calls so far, storage, dimensions, checks, quantized forms.

`chaski.ml.cpu.operations` lowers each operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chaski import _native
from chaski.formats.quant import QuantType
from chaski.ml.arena import Buffer
from chaski.ml.fusing import sums_of_products, uses_of
from chaski.ml.graph import Dim, Graph, KVBuffer, Tensor, Weight, source_of, width
from chaski.ml.rounding import Rounding

__all__ = ["Buffer", "Call", "Lowering", "Place", "Vector", "offset"]


class Vector(Struct, frozen=True):
    """A one-dimensional weight: its place in the weights' memory."""

    offset: int


Place = Buffer | KVBuffer | _native.ExpertStack
"""Memory that a step reads or writes; of a stack, the order in which its experts are computed."""

# Operations whose steps can add a residual to their results.
_WITH_RESIDUAL = ("linear", "adapt")

Places = Place | None | tuple[Place, ...]
"""The places of a step's argument: None for an absent operand, a tuple for a list of operands."""


class Call(Struct, frozen=True):
    """One native step: the method's name, its arguments, and the places that it reads and writes."""

    step: str
    arguments: Mapping[str, Any]
    reads: frozenset[Place]
    writes: frozenset[Place]


class Lowering:
    """The state of one walk over a graph. Afterwards `calls` holds the steps, and `dims` the run-time sizes.

    `dims`: each run-time dimension with its maximum. `is_plain`: whether attention takes its plain form.
    `rounding`: which values products read as int8. `sums`: the products that are fused with a sum, each with
    that sum. `adapted`: the products that adapters change. `tiles`: the numbers of the steps that group
    tokens for attention, by mask, query heads per key head, and what an indexer chooses.
    `adapter_rows`: the numbers of the steps that sort rows by adapter, by the lists of adapters.
    `_stacks`: for groups whose experts nothing has requested yet, the stacks that these multiply by.
    """

    def __init__(self, graph: Graph, weights: _native.Weights | None, threads: int, is_plain: bool) -> None:
        self.calls: list[Call] = []
        self.dims: dict[str, int] = {
            d.name: d.maximum for node in graph.nodes for d in node.shape if isinstance(d, Dim)
        }
        self.weights = weights
        self.threads = threads
        self.is_plain = is_plain
        self._dim_index = {name: index for index, name in enumerate(self.dims)}
        self._uses = uses_of(graph)
        self.rounding = Rounding(graph, _type_of)
        self.sums = sums_of_products(graph, self._uses, _WITH_RESIDUAL)
        self.adapted = {node.operands[0] for node in graph.nodes if node.op == "adapt"}
        self.tiles: dict[tuple[Tensor, int] | tuple[Tensor, int, int, int], int] = {}
        self.adapter_rows: dict[Tensor, int] = {}
        self._stacks = _stacks_of(graph)
        self._buffers: dict[Tensor, Buffer] = {}
        self._quantized: dict[Tensor, Buffer] = {}
        self._checked: set[tuple[Tensor, int, int | None]] = set()

    def buffer(self, node: Tensor) -> Buffer:
        """Return the buffer of a node's values."""
        return self._buffers[source_of(node)]

    def extent(self, node: Tensor) -> tuple[int, int]:
        """Return the number of a node's leading run-time dimension, and the elements of one of its rows."""
        return self.dim(node), width(node)

    def dim(self, node: Tensor) -> int:
        """Return the number of a node's leading run-time dimension."""
        leading = node.shape[0]
        assert isinstance(leading, Dim), f"{node.op}: the leading dimension must be a run-time one"
        return self._dim_index[leading.name]

    def new(self, node: Tensor) -> Buffer:
        """Return a new buffer for a node. Every element type of activations and indices has 4 bytes."""
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        self._buffers[node] = Buffer(4 * leading.maximum * width(node), width(node))
        return self._buffers[node]

    def reuse_or_new(self, node: Tensor, operand: Tensor) -> Buffer:
        """Return the operand's buffer if nothing else reads it (the step works in place), else a new one."""
        if self._uses[operand] == 1 and self._uses[source_of(operand)] == 1:
            self._buffers[node] = self.buffer(operand)
            return self._buffers[node]
        return self.new(node)

    def call(
        self,
        step: str,
        reads: Mapping[str, Tensor | Place | None | tuple[Tensor, ...]],
        writes: Mapping[str, Place | None],
        **arguments: Any,
    ) -> None:
        """Add a step that the threads compute, with the places that it reads or writes and other arguments.

        A tensor stands for the buffer of its values, and None for an absent operand.
        """
        read = {name: self._places(x) for name, x in reads.items()}
        self.calls.append(Call(step, {**read, **writes, **arguments}, _touched(read), _touched(writes)))

    def compute(
        self,
        node: Tensor,
        reads: Mapping[str, Tensor | Place | None | tuple[Tensor, ...]],
        y: Place | None = None,
        **arguments: Any,
    ) -> None:
        """Add the step with the name of a node's operation, which writes the node's rows to `y`.

        Without `y`, the rows get a new buffer.
        """
        self.call(node.op, reads, {"y": y or self.new(node)}, dim=self.dim(node), **arguments)

    def _places(self, x: Tensor | Place | None | tuple[Tensor, ...]) -> Places:
        if isinstance(x, tuple):
            return tuple(self.buffer(tensor) for tensor in x)
        return self.buffer(x) if isinstance(x, Tensor) else x

    def setup(self, step: str, **arguments: Any) -> None:
        """Add a step that only reads the inputs, before the threads start."""
        self.calls.append(Call(step, arguments, frozenset(), frozenset()))

    def request_experts(self, groups: Tensor) -> None:
        """Add the step that requests the experts of groups in all stacks, if no earlier one does."""
        stacks = self._stacks.pop(groups, None)
        if stacks:
            self.calls.append(
                Call(
                    "request_experts",
                    {
                        "dim": self.dim(groups),
                        "count": groups.shape[1],
                        "stacks": stacks,
                        "groups": self.buffer(groups),
                    },
                    frozenset([self.buffer(groups)]),
                    frozenset(stacks),
                )
            )

    def check(self, indices: Tensor, limit: int, limit_dim: int | None = None) -> None:
        """Add a check that rejects runs in which an input holds an index outside [0, limit)."""
        if (indices, limit, limit_dim) not in self._checked:
            self._checked.add((indices, limit, limit_dim))
            self.setup(
                "check_indices",
                name=indices.attributes["name"],
                dim=self.dim(indices),
                indices=self.buffer(indices),
                limit=limit,
                limit_dim=limit_dim,
            )

    def new_quantized(self, node: Tensor) -> Buffer:
        """Return a new buffer for the int8 form of a node."""
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        size = _native.quantized_bytes(leading.maximum * width(node))
        self._quantized[node] = Buffer(size, width(node))
        return self._quantized[node]

    def quantized_with(self, node: Tensor) -> Mapping[str, Buffer | None]:
        """Return the `quantized` argument of a step that can quantize its own result: a buffer, or None."""
        return {"quantized": self.new_quantized(node) if node in self.rounding.columns else None}

    def k_of(self, node: Tensor) -> int:
        """Return the length of the rows that products read from a node: one or several per row of it."""
        return self.rounding.columns.get(node, width(node))

    def quantized_form(self, x: Tensor) -> Buffer:
        """Return the buffer of a node's int8 form; add a step that makes it if no earlier one does."""
        source = source_of(x)
        if source not in self._quantized:
            target = self.new_quantized(source)
            self.call(
                "quantize",
                {"x": source},
                {"quantized": target},
                dim=self.dim(source),
                width=width(source),
                k=self.k_of(source),
            )
        return self._quantized[source]

    def activations(self, product: Tensor, x: Tensor) -> Mapping[str, Tensor | Buffer | None]:
        """Return the input arguments of a matrix product: x, or its int8 form."""
        if product in self.rounding.products:
            return {"x": None, "quantized": self.quantized_form(x)}
        return {"x": x, "quantized": None}


def _stacks_of(graph: Graph) -> dict[Tensor, list[_native.ExpertStack]]:
    """Return the stacks of experts in a store that multiply by the same groups, in order."""
    found: dict[Tensor, list[_native.ExpertStack]] = {}
    for node in graph.nodes:
        if node.op == "expert_linear":
            _, groups, weight, *_ = node.operands
            if isinstance(weight, Weight) and isinstance(weight.handle, _native.ExpertStack):
                assert isinstance(groups, Tensor)
                found.setdefault(groups, []).append(weight.handle)
    return found


def _type_of(weight: Weight) -> QuantType:
    """Return the type of a matrix, or the one type of all experts' matrices."""
    matrix = weight.handle[0] if isinstance(weight.handle, list) else weight.handle
    assert isinstance(matrix, _native.WeightMatrix | _native.ExpertStack)
    return QuantType(matrix.type)


def offset(weight: Weight | None) -> int | None:
    """Return a vector's offset in the weights' memory; None for None."""
    if weight is None:
        return None
    assert isinstance(weight.handle, Vector), f"{weight.name} is not a vector"
    return weight.handle.offset


def _touched(places: Mapping[str, Places]) -> frozenset[Place]:
    lists = (place if isinstance(place, tuple) else (place,) for place in places.values())
    return frozenset(place for some in lists for place in some if place is not None)
