"""Element by element, where possible in place of an operand."""

from __future__ import annotations

from typing import Any

from chaski.ml.cpu.lowering import Buffer, Lowering, offset, width
from chaski.ml.graph import Tensor, Weight

__all__ = [
    "add_vector",
    "gated",
    "gelu",
    "gelu_tanh",
    "multiply",
    "position_scale",
    "scale",
    "softcap",
    "times",
]


def gated(lowering: Lowering, node: Tensor, gate: Tensor, up: Tensor) -> None:
    """Any gate whose step has the operation's name: `swiglu`, `geglu`, `clamped_swiglu`."""
    _each_element(lowering, node, gate, quantizes=True, gate=lowering.buffer(gate), up=lowering.buffer(up))


def multiply(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    _each_element(lowering, node, a, quantizes=True, a=lowering.buffer(a), b=lowering.buffer(b))


def times(lowering: Lowering, node: Tensor, x: Tensor, factors: Tensor) -> None:
    _each_element(lowering, node, x, x=lowering.buffer(x), factors=lowering.buffer(factors))


def add_vector(lowering: Lowering, node: Tensor, x: Tensor, vector: Weight) -> None:
    y = lowering.new(node)
    lowering.call(
        "add_vector",
        (lowering.buffer(x),),
        (y,),
        dim=lowering.dim(node),
        width=width(node),
        weights=lowering.weights,
        vector=offset(vector),
        x=lowering.buffer(x),
        y=y,
    )


def gelu(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _each_element(lowering, node, x, quantizes=True, x=lowering.buffer(x))


def gelu_tanh(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _each_element(lowering, node, x, quantizes=True, x=lowering.buffer(x))


def softcap(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _each_element(lowering, node, x, x=lowering.buffer(x))


def scale(lowering: Lowering, node: Tensor, x: Tensor) -> None:
    _each_element(lowering, node, x, x=lowering.buffer(x))


def position_scale(lowering: Lowering, node: Tensor, positions: Tensor) -> None:
    lowering.check(positions, 2**31 - 1)
    y = lowering.new(node)
    source = lowering.buffer(positions)
    lowering.call(
        "position_scale", (source,), (y,), dim=lowering.dim(node), positions=source, y=y, **node.attributes
    )


def _each_element(
    lowering: Lowering, node: Tensor, replaced: Tensor, quantizes: bool = False, **operands: Buffer
) -> None:
    """A step of the operation's own name, which may work in place of the operand `replaced`."""
    y = lowering.reuse_or_new(node, replaced)
    arguments: dict[str, Any] = {}
    written: tuple[Buffer, ...] = ()
    if quantizes:
        arguments["quantized"], written = lowering.quantized_with(node)
    lowering.call(
        node.op,
        tuple(operands.values()),
        (y, *written),
        dim=lowering.dim(node),
        width=width(node),
        y=y,
        **operands,
        **node.attributes,
        **arguments,
    )
