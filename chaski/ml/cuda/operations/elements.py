"""Norms, elementwise operations, and operations that scale rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import Constant, Double, Kernel, Lowering, Sizes, vector_of
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Tensor, Weight, width

__all__ = [
    *("by_vector", "elementwise", "gaussian_top_k", "head_sums", "layer_norm", "rms", "rms_norm"),
    *("scale_heads", "scale_rows"),
]


def rms_norm(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight | None = None) -> None:
    _norm(lowering, node, x, weight, None)


def layer_norm(
    lowering: Lowering, node: Tensor, x: Tensor, weight: Weight, bias: Weight | None = None
) -> None:
    _norm(lowering, node, x, weight, bias)


def _norm(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight | None, bias: Weight | None) -> None:
    size = node.shape[-1]
    assert isinstance(size, int)
    heads, dim, op = width(node) // size, lowering.dim(node), node.op
    threads = min(1024, -(-size // 256) * 32)  # with eight elements each, or more in wide rows
    # Threads of a wide row would take more registers than 1,024 of them have.
    bounds = (("CHASKI_BOUNDS", "1024,1"),) if size > 8 * 1024 else ()
    program = lowering.rounding_program("norms", node, ("CHASKI_ROW", size), *bounds)
    positions = -(-size // 16)  # positions of each of 16 lanes; below, the distance between lanes
    shared = 4 * (16 * 4 * (-(-positions // 4) | 1) + 16 + 1)
    # A separate step rounds rows of several heads.
    rounded = lowering.quantized_with(node) if heads == 1 else (None,) * 4
    y = lowering.new_if_read(node) if heads == 1 else lowering.new(node)

    def choose(sizes: Sizes) -> Kernel | None:
        if sizes[dim] == 1 and node in lowering.normed:
            return None
        return Kernel(program, op, (sizes[dim] * heads, 1, 1), threads, shared)

    lowering.step(
        choose,
        *(x, lowering.count(node), heads, vector_of(weight), vector_of(bias)),
        *(float(node.attributes["eps"]), y, *rounded),
    )


def elementwise(lowering: Lowering, node: Tensor, *operands: Tensor) -> None:
    """Lower any operation of the elementwise table."""
    op, columns, dim = ELEMENTWISE[node.op], width(node), lowering.dim(node)
    parameters = [float(node.attributes[name]) for name in op.parameters]
    program = lowering.rounding_program("elementwise", node, ("CHASKI_FORMULA", op.name))
    tail = lowering.tails.get(node)
    y = tail.y if tail else lowering.new_if_read(node)
    rounded = tail.rounded if tail else lowering.quantized_with(node)

    def choose(sizes: Sizes) -> Kernel | None:
        if tail and tail.is_taken(sizes):
            return None
        return Kernel(program, "elementwise", (-(-sizes[dim] * columns // 1024), 1, 1), 512, 4 * 1024)

    lowering.step(
        choose,
        *(*operands, *(None,) * (2 - len(operands)), lowering.count(node), columns),
        *(*parameters, *(0.0,) * (2 - len(parameters)), y, *rounded),
    )


def scale_rows(lowering: Lowering, node: Tensor, x: Tensor, factors: Tensor) -> None:
    parts = width(factors)
    arguments = (x, lowering.count(node), parts, width(node) // parts, factors, lowering.new(node))
    lowering.for_each("rows", "scale_rows", node, width(node), *arguments)


def scale_heads(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    factors = node.attributes["factors"]
    arguments = (x, lowering.count(node), len(factors), width(node) // len(factors), Constant(factors))
    lowering.for_each("rows", "scale_heads", node, width(node), *arguments, lowering.new(node))


def by_vector(lowering: Lowering, node: Tensor, x: Tensor, vector: Weight) -> None:
    arguments = (x, lowering.count(node), width(node), vector_of(vector), lowering.new(node))
    lowering.for_each("rows", node.op, node, width(node), *arguments)


def rms(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _with_row_sums(lowering, node, x, lowering.count(node), width(x), lowering.new(node))


def head_sums(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    heads = width(node)
    arguments = (x, lowering.count(node), heads, width(x) // heads, lowering.new(node))
    _with_row_sums(lowering, node, *arguments, heads=heads)


def gaussian_top_k(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    multiplier = Double(float(np.float32(node.attributes["multiplier"])))
    _with_row_sums(lowering, node, x, lowering.count(node), width(x), multiplier, lowering.new(node))


def _with_row_sums(lowering: Lowering, node: Tensor, *arguments: Any, heads: int = 1) -> None:
    """Add a step with a thread block per head, and the shared memory that `row_sum` of rows.cu needs."""
    dim, op = lowering.dim(node), node.op

    def choose(sizes: Sizes) -> Kernel:
        return Kernel(Program("rows"), op, (sizes[dim] * heads, 1, 1), 256, 8 * (2048 + 1))

    lowering.step(choose, *arguments)
