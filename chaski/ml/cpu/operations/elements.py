"""Element by element, where possible in place of an operand."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.ml.cpu.lowering import Lowering, offset, width
from chaski.ml.graph import Tensor, Weight

__all__ = ["add_vector", "gated", "gelu", "map", "multiply", "position_scale", "scale_rows"]


def gated(lowering: Lowering, node: Tensor, gate: Tensor, up: Tensor) -> None:
    """Any gate whose step has the operation's name: `swiglu`, `geglu`, `clamped_swiglu`."""
    _each_element(lowering, node, {"gate": gate, "up": up}, quantizes=True)


def multiply(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    _each_element(lowering, node, {"a": a, "b": b}, quantizes=True)


def gelu(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    """`gelu` or `gelu_tanh`."""
    _each_element(lowering, node, {"x": x}, quantizes=True)


def scale_rows(lowering: Lowering, node: Tensor, x: Tensor, factors: Tensor) -> None:
    _each_element(lowering, node, {"x": x, "factors": factors})


def map(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    """Any function of single elements whose step has the operation's name: `softcap`, `scale`."""
    _each_element(lowering, node, {"x": x})


def add_vector(lowering: Lowering, node: Tensor, x: Tensor, vector: Weight) -> None:
    lowering.call(
        "add_vector",
        {"x": x},
        {"y": lowering.new(node)},
        dim=lowering.dim(node),
        width=width(node),
        weights=lowering.weights,
        vector=offset(vector),
    )


def position_scale(lowering: Lowering, node: Tensor, positions: Tensor) -> None:
    lowering.check(positions, 2**31 - 1)
    lowering.call(
        "position_scale",
        {"positions": positions},
        {"y": lowering.new(node)},
        dim=lowering.dim(node),
        **node.attributes,
    )


def _each_element(
    lowering: Lowering, node: Tensor, operands: Mapping[str, Tensor], quantizes: bool = False
) -> None:
    """A step of the operation's own name, which may work in place of its first operand."""
    y = lowering.reuse_or_new(node, next(iter(operands.values())))
    lowering.call(
        node.op,
        operands,
        {"y": y, **(lowering.quantized_with(node) if quantizes else {})},
        dim=lowering.dim(node),
        width=width(node),
        **node.attributes,
    )
