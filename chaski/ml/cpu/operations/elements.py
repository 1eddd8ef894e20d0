"""Elementwise operations, and operations that multiply rows or add to them."""

from __future__ import annotations

from chaski.ml.cpu.lowering import Lowering, offset
from chaski.ml.elementwise import ELEMENTWISE
from chaski.ml.graph import Tensor, Weight, width

__all__ = [
    "by_vector",
    "elementwise",
    "gaussian_top_k",
    "head_sums",
    "mix_streams",
    "position_scale",
    "rms",
    "scale_heads",
    "scale_rows",
    "sinkhorn",
]


def elementwise(lowering: Lowering, node: Tensor, *operands: Tensor) -> None:
    """Lower an operation of the table, in place of its first operand if possible; round it for products."""
    op = ELEMENTWISE[node.op]
    lowering.call(
        "elementwise",
        {"operands": operands},
        {"y": lowering.reuse_or_new(node, operands[0]), **lowering.quantized_with(node)},
        op=op.name,
        dim=lowering.dim(node),
        width=width(node),
        k=lowering.k_of(node),
        parameters=[node.attributes[name] for name in op.parameters],
    )


def scale_rows(lowering: Lowering, node: Tensor, x: Tensor, factors: Tensor) -> None:
    y = lowering.reuse_or_new(node, x)
    parts = width(factors)
    lowering.compute(node, {"x": x, "factors": factors}, y, parts=parts, width=width(node) // parts)


def scale_heads(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    factors = node.attributes["factors"].tolist()
    lowering.compute(node, {"x": x}, size=x.shape[2], factors=factors)


def head_sums(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    lowering.compute(node, {"x": x}, heads=x.shape[1], size=x.shape[2])


def mix_streams(lowering: Lowering, node: Tensor, x: Tensor, weights: Tensor) -> None:
    _, streams, size = x.shape
    lowering.compute(node, {"x": x, "weights": weights}, streams=streams, outputs=weights.shape[2], size=size)


def sinkhorn(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    lowering.compute(node, {"x": x}, size=x.shape[2], **node.attributes)


def rms(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    lowering.compute(node, {"x": x}, width=width(x))


def gaussian_top_k(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    lowering.compute(node, {"x": x}, width=width(x), **node.attributes)


def by_vector(lowering: Lowering, node: Tensor, x: Tensor, vector: Weight) -> None:
    """Lower `add_vector` and `multiply_vector`: an elementwise operation with one vector for every row."""
    lowering.call(
        "by_vector",
        {"x": x},
        {"y": lowering.new(node)},
        op=node.op.removesuffix("_vector"),
        dim=lowering.dim(node),
        width=width(node),
        weights=lowering.weights,
        vector=offset(vector),
    )


def position_scale(lowering: Lowering, node: Tensor, positions: Tensor) -> None:
    lowering.check(positions, 2**31 - 1)
    lowering.compute(node, {"positions": positions}, **node.attributes)
