"""From recorded operations to calls of native steps. One method an operation, found by its name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chaski import _native
from chaski.ml.graph import Dim, Graph, KVBuffer, Operand, Tensor, Weight

__all__ = ["Buffer", "Call", "Lowering", "Vector"]


@dataclass(frozen=True, slots=True)
class Vector:
    """A one-dimensional weight: its place in the weights' memory."""

    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Bytes of the arena, large enough for the largest run. `width` is the elements of one row."""

    size: int
    width: int


@dataclass(frozen=True, slots=True)
class Call:
    """One native step: the method's name, its arguments, and what it touches (buffers and KV storage)."""

    step: str
    arguments: Mapping[str, Any]
    reads: frozenset[object]
    writes: frozenset[object]
    computes: bool = True


class Lowering:
    """Walks a graph once; afterwards `calls` holds the steps and `dims` run-time sizes and maxima.

    `is_plain`: whether attention takes its plain form.
    """

    def __init__(self, graph: Graph, weights: _native.Weights | None, threads: int, is_plain: bool) -> None:
        self.calls: list[Call] = []
        self.dims: dict[str, int] = {
            d.name: d.maximum for node in graph.nodes for d in node.shape if isinstance(d, Dim)
        }
        self._dim_index = {name: index for index, name in enumerate(self.dims)}
        self._weights = weights
        self._threads = threads
        self._is_plain = is_plain
        self._uses = Counter(x for node in graph.nodes for x in node.operands if isinstance(x, Tensor))
        self._uses.update(graph.outputs.values())
        self._quantized_inputs = _quantized_inputs(graph)
        self._buffers: dict[Tensor, Buffer] = {}
        self._quantized: dict[Tensor, Buffer] = {}
        self._products: dict[Tensor, Tensor] = _sums_of_products(graph, self._uses)
        self._tiles: dict[tuple[Tensor, int], int] = {}
        self._checked: set[tuple[Tensor, int, int]] = set()
        for node in graph.nodes:
            getattr(self, f"_{node.op}")(node, *node.operands)

    def buffer(self, node: Tensor) -> Buffer:
        """Where a node's values are."""
        return self._buffers[_source(node)]

    def extent(self, node: Tensor) -> tuple[int, int]:
        """A node's leading run-time dimension, by number, and the elements of one of its rows."""
        return self._dim(node), _width(node)

    # ---- what all operations use ----

    def _dim(self, node: Tensor) -> int:
        leading = node.shape[0]
        assert isinstance(leading, Dim), f"{node.op}: the leading dimension must be a run-time one"
        return self._dim_index[leading.name]

    def _new(self, node: Tensor) -> Buffer:
        """Storage for a node; every element type of activations and indices has 4 bytes."""
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        width = _width(node)
        self._buffers[node] = Buffer(4 * leading.maximum * width, width)
        return self._buffers[node]

    def _reuse_or_new(self, node: Tensor, operand: Tensor) -> Buffer:
        """The operand's own storage when nothing else reads it: element-by-element steps work in place."""
        if self._uses[operand] == 1 and self._uses[_source(operand)] == 1:
            self._buffers[node] = self.buffer(operand)
            return self._buffers[node]
        return self._new(node)

    def _call(
        self, step: str, reads: tuple[object, ...], writes: tuple[object, ...], **arguments: Any
    ) -> None:
        self.calls.append(Call(step, arguments, frozenset(reads), frozenset(writes)))

    def _setup(self, step: str, **arguments: Any) -> None:
        """A step that only looks at the inputs before the threads start."""
        self.calls.append(Call(step, arguments, frozenset(), frozenset(), computes=False))

    def _check(self, indices: Tensor, limit: int, limit_dim: int = -1) -> None:
        """Refuse runs in which an input holds an index outside [0, limit)."""
        if (indices, limit, limit_dim) not in self._checked:
            self._checked.add((indices, limit, limit_dim))
            self._setup(
                "check_indices",
                name=indices.attributes["name"],
                dim=self._dim(indices),
                indices=self.buffer(indices),
                limit=limit,
                limit_dim=limit_dim,
            )

    def _new_quantized(self, node: Tensor) -> Buffer:
        """Storage for the int8 form of a node: values, a scale for each 32 of them, a sum for each 16."""
        leading = node.shape[0]
        assert isinstance(leading, Dim)
        count = leading.maximum * _width(node)
        size = _align(count) + _align(count // 32 * 4) + _align(count // 16 * 2)
        self._quantized[node] = Buffer(size, _width(node))
        return self._quantized[node]

    def _quantized_with(self, node: Tensor) -> tuple[Buffer | int, tuple[Buffer, ...]]:
        """For a step that can quantize its own result: the argument (-1 for none) and what it writes."""
        if node not in self._quantized_inputs:
            return -1, ()
        target = self._new_quantized(node)
        return target, (target,)

    def _quantized_form(self, x: Tensor) -> Buffer:
        source = _source(x)
        if source not in self._quantized:
            target = self._new_quantized(source)
            values = self.buffer(source)
            self._call(
                "quantize",
                (values,),
                (target,),
                dim=self._dim(source),
                width=_width(source),
                x=values,
                quantized=target,
            )
        return self._quantized[source]

    # ---- operations ----

    def _input(self, node: Tensor) -> None:
        self._new(node)

    def _reshape(self, node: Tensor, x: Tensor) -> None:
        """The same bytes: `_source` looks through it."""

    def _embedding(self, node: Tensor, ids: Tensor, table: Weight) -> None:
        self._check(ids, table.shape[0])
        y = self._new(node)
        self._call(
            "embedding",
            (self.buffer(ids),),
            (y,),
            dim=self._dim(node),
            table=table.handle,
            ids=self.buffer(ids),
            y=y,
        )

    def _rows(self, node: Tensor, x: Tensor, indices: Tensor) -> None:
        self._check(indices, 0, limit_dim=self._dim(x))
        y = self._new(node)
        self._call(
            "rows",
            (self.buffer(x), self.buffer(indices)),
            (y,),
            dim=self._dim(node),
            source_dim=self._dim(x),
            width=_width(node),
            x=self.buffer(x),
            indices=self.buffer(indices),
            y=y,
        )

    def _rms_norm(self, node: Tensor, x: Tensor, weight: Weight | None = None) -> None:
        self._norm(node, x, weight=-1 if weight is None else _offset(weight))

    def _layer_norm(self, node: Tensor, x: Tensor, weight: Weight, bias: Weight) -> None:
        self._norm(node, x, weight=_offset(weight), bias=_offset(bias))

    def _norm(self, node: Tensor, x: Tensor, **vectors: int) -> None:
        y = self._new(node)
        quantized, written = self._quantized_with(node)
        size = node.shape[-1]
        assert isinstance(size, int)
        self._call(
            node.op,
            (self.buffer(x),),
            (y, *written),
            dim=self._dim(node),
            weights=self._weights,
            heads=_width(node) // size,
            size=size,
            eps=node.attributes["eps"],
            x=self.buffer(x),
            y=y,
            quantized=quantized,
            **vectors,
        )

    def _swiglu(self, node: Tensor, gate: Tensor, up: Tensor) -> None:
        self._gated(node, gate, up)

    def _geglu(self, node: Tensor, gate: Tensor, up: Tensor) -> None:
        self._gated(node, gate, up)

    def _clamped_swiglu(self, node: Tensor, gate: Tensor, up: Tensor) -> None:
        self._gated(node, gate, up)

    def _gated(self, node: Tensor, gate: Tensor, up: Tensor) -> None:
        self._each_element(node, gate, quantizes=True, gate=self.buffer(gate), up=self.buffer(up))

    def _multiply(self, node: Tensor, a: Tensor, b: Tensor) -> None:
        self._each_element(node, a, quantizes=True, a=self.buffer(a), b=self.buffer(b))

    def _add_vector(self, node: Tensor, x: Tensor, vector: Weight) -> None:
        y = self._new(node)
        self._call(
            "add_vector",
            (self.buffer(x),),
            (y,),
            dim=self._dim(node),
            width=_width(node),
            weights=self._weights,
            vector=_offset(vector),
            x=self.buffer(x),
            y=y,
        )

    def _columns(self, node: Tensor, x: Tensor) -> None:
        y = self._new(node)
        self._call(
            "columns",
            (self.buffer(x),),
            (y,),
            dim=self._dim(node),
            source_width=_width(x),
            first=node.attributes["first"],
            width=_width(node),
            x=self.buffer(x),
            y=y,
        )

    def _gelu(self, node: Tensor, x: Tensor) -> None:
        self._each_element(node, x, quantizes=True, x=self.buffer(x))

    def _softcap(self, node: Tensor, x: Tensor) -> None:
        self._each_element(node, x, x=self.buffer(x))

    def _scale(self, node: Tensor, x: Tensor) -> None:
        self._each_element(node, x, x=self.buffer(x))

    def _times(self, node: Tensor, x: Tensor, factors: Tensor) -> None:
        self._each_element(node, x, x=self.buffer(x), factors=self.buffer(factors))

    def _each_element(
        self, node: Tensor, replaced: Tensor, quantizes: bool = False, **operands: Buffer
    ) -> None:
        """A step of the operation's own name, which may work in place of the operand `replaced`."""
        y = self._reuse_or_new(node, replaced)
        arguments: dict[str, Any] = {}
        written: tuple[Buffer, ...] = ()
        if quantizes:
            arguments["quantized"], written = self._quantized_with(node)
        self._call(
            node.op,
            tuple(operands.values()),
            (y, *written),
            dim=self._dim(node),
            width=_width(node),
            y=y,
            **operands,
            **node.attributes,
            **arguments,
        )

    def _position_scale(self, node: Tensor, positions: Tensor) -> None:
        self._check(positions, 2**31 - 1)
        y = self._new(node)
        source = self.buffer(positions)
        self._call(
            "position_scale", (source,), (y,), dim=self._dim(node), positions=source, y=y, **node.attributes
        )

    def _linear(self, node: Tensor, x: Tensor, weight: Weight, bias: Weight | None = None) -> None:
        if node not in self._products:
            self._product(node, node, None)

    def _add(self, node: Tensor, a: Tensor, b: Tensor) -> None:
        for product, residual in ((b, a), (a, b)):
            if self._products.get(product) is node:
                self._product(node, product, residual)
                return
        y = self._new(node)
        self._call(
            "add",
            (self.buffer(a), self.buffer(b)),
            (y,),
            dim=self._dim(node),
            width=_width(node),
            a=self.buffer(a),
            b=self.buffer(b),
            y=y,
        )

    def _product(self, node: Tensor, product: Tensor, residual: Tensor | None) -> None:
        """A matrix product, plus the residual that is added to it; `node` is the result of both."""
        x, weight, *rest = product.operands
        assert isinstance(x, Tensor)
        assert isinstance(weight, Weight)
        bias = rest[0] if rest else None
        y = self._new(node)
        source = self._quantized_form(x) if _is_quantized_product(product) else self.buffer(x)
        added = () if residual is None else (self.buffer(residual),)
        self._call(
            "matmul",
            (source, *added),
            (y,),
            dim=self._dim(node),
            weight=weight.handle,
            x=0 if _is_quantized_product(product) else source,
            quantized=source if _is_quantized_product(product) else -1,
            weights=self._weights,
            bias=_offset(bias) if isinstance(bias, Weight) else -1,
            residual=-1 if residual is None else self.buffer(residual),
            y=y,
        )

    def _rope_table(self, node: Tensor, positions: Tensor) -> None:
        self._check(positions, 2**31 - 1)
        y = self._new(node)
        self._call(
            "rope_table",
            (self.buffer(positions),),
            (y,),
            dim=self._dim(node),
            positions=self.buffer(positions),
            frequencies=node.attributes["frequencies"].tolist(),
            magnitude=node.attributes["magnitude"],
            table=y,
        )

    def _rope(self, node: Tensor, x: Tensor, table: Tensor) -> None:
        y = self._reuse_or_new(node, x)
        self._call(
            "rope",
            (self.buffer(x), self.buffer(table)),
            (y,),
            dim=self._dim(node),
            heads=node.shape[1],
            size=node.shape[2],
            pairs=table.shape[2],
            halves=node.attributes["halves"],
            x=self.buffer(x),
            table=self.buffer(table),
            y=y,
        )

    def _route(self, node: Tensor, logits: Tensor, bias: Weight | None = None) -> None:
        y = self._new(node)
        self._call(
            "route",
            (self.buffer(logits),),
            (y,),
            dim=self._dim(node),
            experts=_width(logits),
            weights=self._weights,
            bias=-1 if bias is None else _offset(bias),
            x=self.buffer(logits),
            y=y,
            **node.attributes,
        )

    def _group(self, node: Tensor, routes: Tensor) -> None:
        y, source = self._new(node), self.buffer(routes)
        arguments = {"dim": self._dim(node), "count": node.shape[1], **node.attributes}
        self._call("group", (source,), (y,), routes=source, y=y, **arguments)

    def _dispatch(self, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None) -> None:
        order, arguments = self.buffer(groups), {"dim": self._dim(node), "count": groups.shape[1]}
        arguments["width"] = _width(x)
        if routes is None and node in self._quantized_inputs:
            source, target = self._quantized_form(x), self._new_quantized(node)
            self._call(
                "dispatch_quantized",
                (source, order),
                (target,),
                x=source,
                groups=order,
                y=target,
                **arguments,
            )
            return
        y = self._new(node)
        weights = () if routes is None else (self.buffer(routes),)
        self._call(
            "dispatch",
            (self.buffer(x), order, *weights),
            (y,),
            x=self.buffer(x),
            routes=weights[0] if weights else -1,
            groups=order,
            y=y,
            **arguments,
        )

    def _expert_linear(
        self, node: Tensor, x: Tensor, groups: Tensor, weight: Weight, bias: Weight | None = None
    ) -> None:
        y, order = self._new(node), self.buffer(groups)
        is_quantized = _is_quantized_product(node)
        source = self._quantized_form(x) if is_quantized else self.buffer(x)
        self._call(
            "expert_matmul",
            (source, order),
            (y,),
            dim=self._dim(node),
            count=groups.shape[1],
            experts=weight.handle,
            weights=self._weights,
            bias=-1 if bias is None else _offset(bias),
            x=0 if is_quantized else source,
            quantized=source if is_quantized else -1,
            groups=order,
            y=y,
        )

    def _combine(self, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None) -> None:
        y, order = self._new(node), self.buffer(groups)
        weights = () if routes is None else (self.buffer(routes),)
        self._call(
            "combine",
            (self.buffer(x), order, *weights),
            (y,),
            dim=self._dim(node),
            count=groups.shape[1],
            width=_width(node),
            x=self.buffer(x),
            routes=weights[0] if weights else -1,
            groups=order,
            y=y,
        )

    def _store(self, node: Tensor, x: Tensor, cells: Tensor, target: KVBuffer) -> None:
        self._check(cells, target.cells)
        self._call(
            "store",
            (self.buffer(x), self.buffer(cells)),
            (target,),
            dim=self._dim(x),
            x=self.buffer(x),
            cells=self.buffer(cells),
            target=target.handle,
        )

    def _rotate_cells(self, node: Tensor, cells: Tensor, table: Tensor, target: KVBuffer) -> None:
        self._check(cells, target.cells)
        self._call(
            "rotate_cells",
            (self.buffer(cells), self.buffer(table), target),
            (target,),
            dim=self._dim(cells),
            cells=self.buffer(cells),
            pairs=table.shape[2],
            halves=node.attributes["halves"],
            table=self.buffer(table),
            target=target.handle,
        )

    def _short_conv(self, node: Tensor, x: Tensor, segments: Tensor, states: KVBuffer) -> None:
        y = self._new(node)
        self._call(
            "short_conv",
            (self.buffer(x), self.buffer(segments), states),
            (y, states),
            dim=self._dim(node),
            segments_dim=self._dim(segments),
            x=self.buffer(x),
            filter=node.attributes["filter"].T.ravel().tolist(),
            segments=self.buffer(segments),
            states=states.handle,
            y=y,
        )

    def _attention(
        self,
        node: Tensor,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        cells: Tensor,
        spans: Tensor,
        sinks: Weight | None = None,
    ) -> None:
        key_store, value_store = keys.operands[2], values.operands[2]
        assert isinstance(key_store, KVBuffer)
        assert isinstance(value_store, KVBuffer)
        heads = node.shape[1]
        assert isinstance(heads, int)
        self._check(cells, key_store.cells)
        parts = self._attention_parts(heads, value_store, cells)
        y = self._new(node)
        self._call(
            "attention",
            (self.buffer(q), key_store, value_store, self.buffer(cells), self.buffer(spans)),
            (y,) if parts is None else (y, parts),
            dim=self._dim(q),
            history=self._dim(cells),
            heads=heads,
            scale=node.attributes["scale"],
            cap=node.attributes["softcap"],
            is_plain=self._is_plain,
            q=self.buffer(q),
            keys=key_store.handle,
            values=value_store.handle,
            cells=self.buffer(cells),
            spans=self.buffer(spans),
            tiles=self._tiles_of(q, cells, spans, heads // key_store.heads),
            weights=self._weights,
            sinks=-1 if sinks is None else _offset(sinks),
            parts=-1 if parts is None else parts,
            y=y,
        )

    def _attention_parts(self, heads: int, values: KVBuffer, cells: Tensor) -> Buffer | None:
        """Memory for the chunks of a history that several threads share; None where they never do."""
        history = cells.shape[0]
        assert isinstance(history, Dim)
        size = _native.attention_parts_bytes(heads, values.heads, values.size, history.maximum, self._threads)
        return None if size == 0 or self._is_plain else Buffer(size, 1)

    def _tiles_of(self, q: Tensor, cells: Tensor, spans: Tensor, group: int) -> int:
        """The number of the step that groups tokens, shared by all layers with this mask and group."""
        if (spans, group) not in self._tiles:
            self._tiles[spans, group] = len(self._tiles)
            self._setup(
                "tiles",
                tokens=self._dim(q),
                history=self._dim(cells),
                spans=self.buffer(spans),
                group=group,
                is_plain=self._is_plain,
            )
        return self._tiles[spans, group]


def _source(node: Operand) -> Tensor:
    """The node that made the bytes: reshaping makes none."""
    assert isinstance(node, Tensor)
    return _source(node.operands[0]) if node.op == "reshape" else node


def _sums_of_products(graph: Graph, uses: Mapping[Tensor, int]) -> dict[Tensor, Tensor]:
    """Matrix products whose only reader is a sum, which they can take in: product -> sum."""
    taken: dict[Tensor, Tensor] = {}
    for node in graph.nodes:
        if node.op == "add":
            for operand in reversed(node.operands):
                if isinstance(operand, Tensor) and operand.op == "linear" and uses[operand] == 1:
                    taken[operand] = node
                    break
    return taken


def _quantized_inputs(graph: Graph) -> set[Tensor]:
    """What is read as int8 blocks: by products with quantized matrices, or to be sorted for them."""
    found: set[Tensor] = set()
    for node in reversed(graph.nodes):
        is_sorted = node.op == "dispatch" and len(node.operands) == 2 and node in found
        if is_sorted or _is_quantized_product(node):
            found.add(_source(node.operands[0]))
    return found


def _is_quantized_product(node: Tensor) -> bool:
    """Whether it multiplies by quantized matrices, and so reads int8 activations."""
    if node.op not in ("linear", "expert_linear"):
        return False
    weight = next(operand for operand in node.operands if isinstance(operand, Weight))
    matrix = weight.handle[0] if isinstance(weight.handle, list) else weight.handle
    assert isinstance(matrix, _native.WeightMatrix)
    return bool(_native.is_quantized(matrix.type))


def _width(node: Tensor) -> int:
    return math.prod(d for d in node.shape[1:] if isinstance(d, int))


def _align(size: int) -> int:
    return -(-size // 64) * 64


def _offset(weight: Weight) -> int:
    assert isinstance(weight.handle, Vector), f"{weight.name} is not a vector"
    return weight.handle.offset
