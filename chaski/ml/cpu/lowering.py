"""The state of lowering a graph: the calls so far, storage, dimensions, checks, quantized forms.

`chaski.ml.cpu.operations` lowers each operation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chaski import _native
from chaski.ml.arena import Buffer
from chaski.ml.cpu.weight_files import laid_out_type
from chaski.ml.fusing import sums_of_products, uses_of
from chaski.ml.graph import Dim, Graph, KVBuffer, Operand, Tensor, Weight

__all__ = ["Buffer", "Call", "Lowering", "Place", "Vector", "is_quantized_product", "offset", "width"]


class Vector(Struct, frozen=True):
    """A one-dimensional weight: its place in the weights' memory."""

    offset: int


Place = Buffer | KVBuffer
"""Memory that a step reads or writes."""

# Operations whose steps can add a residual to their results.
_PRODUCTS = ("linear", "adapt")

Places = Place | None | tuple[Place, ...]
"""The places of an argument of a step: None where an operand is absent, several where it is a list."""


class Call(Struct, frozen=True):
    """One native step: the method's name, its arguments, places among them, and which places it touches."""

    step: str
    arguments: Mapping[str, Any]
    reads: frozenset[Place]
    writes: frozenset[Place]


class Lowering:
    """One walk over a graph; after it `calls` holds the steps, and `dims` run-time sizes and their maxima.

    `is_plain`: whether attention takes its plain form. `quantized_inputs`: tensors that products read as int8
    blocks, or super-blocks if `in_super_blocks`; `float_inputs`: tensors that are read as floats.
    `sums`: the products that a sum takes in, each with that sum. `adapted`: those that adapters change.
    `tiles`: the steps that group tokens for attention, by mask and by query heads a key head, and their
    numbers. `adapter_rows`: the steps that sort rows by adapter, by the lists of adapters, and their numbers.
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
        self.quantized_inputs = _quantized_inputs(graph)
        self.float_inputs = _float_inputs(graph)
        self.in_super_blocks = any(_wants_super_blocks(node) for node in graph.nodes) or any(
            _native.wants_super_blocks(int(laid_out_type(type))) for type in graph.product_types
        )
        self.sums = sums_of_products(graph, self._uses, _PRODUCTS)
        self.adapted = {node.operands[0] for node in graph.nodes if node.op == "adapt"}
        self.tiles: dict[tuple[Tensor, int], int] = {}
        self.adapter_rows: dict[Tensor, int] = {}
        self._buffers: dict[Tensor, Buffer] = {}
        self._quantized: dict[Tensor, Buffer] = {}
        self._checked: set[tuple[Tensor, int, int | None]] = set()

    def buffer(self, node: Tensor) -> Buffer:
        """Return the buffer of a node's values."""
        return self._buffers[_source(node)]

    def extent(self, node: Tensor) -> tuple[int, int]:
        """Return a node's leading run-time dimension, by number, and the elements of one of its rows."""
        return self.dim(node), width(node)

    def dim(self, node: Tensor) -> int:
        """Return a node's leading run-time dimension, by number."""
        leading = node.shape[0]
        assert isinstance(leading, Dim), f"{node.op}: the leading dimension must be a run-time one"
        return self._dim_index[leading.name]

    def new(self, node: Tensor) -> Buffer:
        """Storage for a node; every element type of activations and indices has 4 bytes."""
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        self._buffers[node] = Buffer(4 * leading.maximum * width(node), width(node))
        return self._buffers[node]

    def reuse_or_new(self, node: Tensor, operand: Tensor) -> Buffer:
        """Return the operand's buffer if nothing else reads it (the step works in place), else a new one."""
        if self._uses[operand] == 1 and self._uses[_source(operand)] == 1:
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
        """Add a step that the threads compute, with the places that it reads or writes, and other arguments.

        A tensor means the buffer of its values, and None that there is no such operand.
        """
        read = {name: self._places(x) for name, x in reads.items()}
        self.calls.append(Call(step, {**read, **writes, **arguments}, _touched(read), _touched(writes)))

    def _places(self, x: Tensor | Place | None | tuple[Tensor, ...]) -> Places:
        if isinstance(x, tuple):
            return tuple(self.buffer(tensor) for tensor in x)
        return self.buffer(x) if isinstance(x, Tensor) else x

    def setup(self, step: str, **arguments: Any) -> None:
        """Add a step that only reads the inputs, before the threads start."""
        self.calls.append(Call(step, arguments, frozenset(), frozenset()))

    def check(self, indices: Tensor, limit: int, limit_dim: int | None = None) -> None:
        """Add a check that refuses runs in which an input holds an index outside [0, limit)."""
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
        return {"quantized": self.new_quantized(node) if node in self.quantized_inputs else None}

    def k_of(self, node: Tensor) -> int:
        """Return the length of the rows that products read of a node, which has one or several in a row."""
        return self.quantized_inputs.get(node, width(node))

    def quantized_form(self, x: Tensor) -> Buffer:
        """Return the buffer of a node's int8 form. If no earlier step makes it, one is added."""
        source = _source(x)
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
        if is_quantized_product(product):
            return {"x": None, "quantized": self.quantized_form(x)}
        return {"x": x, "quantized": None}


def is_quantized_product(node: Tensor) -> bool:
    """Return whether `node` multiplies by quantized matrices, and so reads int8 activations."""
    return node.op in ("linear", "first_outputs", "expert_linear") and _native.is_quantized(
        _matrix(node).type
    )


def _matrix(product: Tensor) -> _native.WeightMatrix:
    weight = next(operand for operand in product.operands if isinstance(operand, Weight))
    matrix = weight.handle[0] if isinstance(weight.handle, list) else weight.handle
    assert isinstance(matrix, _native.WeightMatrix)
    return matrix


def _wants_super_blocks(node: Tensor) -> bool:
    """Return whether `node` multiplies by matrices with integer scales: all inputs then share that form."""
    return is_quantized_product(node) and _native.wants_super_blocks(_matrix(node).type)


def width(node: Tensor) -> int:
    """Return the number of elements of one row: of all dimensions after the leading one."""
    return math.prod(d for d in node.shape[1:] if isinstance(d, int))


def offset(weight: Weight | None) -> int | None:
    """Return a vector's offset in the weights' memory; None for None."""
    if weight is None:
        return None
    assert isinstance(weight.handle, Vector), f"{weight.name} is not a vector"
    return weight.handle.offset


def _source(node: Operand) -> Tensor:
    """Return the node that computes the bytes: reshaping does not."""
    assert isinstance(node, Tensor)
    return _source(node.operands[0]) if node.op == "reshape" else node


def _touched(places: Mapping[str, Places]) -> frozenset[Place]:
    lists = (place if isinstance(place, tuple) else (place,) for place in places.values())
    return frozenset(place for some in lists for place in some if place is not None)


def _float_inputs(graph: Graph) -> set[Operand]:
    """Return the operands of all nodes but products with quantized matrices, which read int8 blocks."""
    return {operand for node in graph.nodes if not is_quantized_product(node) for operand in node.operands}


def _quantized_inputs(graph: Graph) -> dict[Tensor, int]:
    """Return the tensors read as int8 blocks, by products with quantized matrices or by their dispatch.

    Each comes with the length of a row that products read.
    """
    found: dict[Tensor, int] = {}
    for node in reversed(graph.nodes):
        if node.op == "dispatch" and len(node.operands) == 2 and node in found:
            found[_source(node.operands[0])] = found[node]
        elif is_quantized_product(node):
            found[_source(node.operands[0])] = _matrix(node).columns
    return found
