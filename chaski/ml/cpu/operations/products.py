"""Matrix products, the sums that they take in, and norms."""

from __future__ import annotations

from chaski.ml.cpu.lowering import Lowering, is_quantized_product, offset, width
from chaski.ml.graph import Tensor, Weight

__all__ = ["add", "layer_norm", "linear", "product", "rms_norm"]


def rms_norm(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight | None = None) -> None:
    _norm(lowering, node, x, weight=offset(weight))


def layer_norm(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight, bias: Weight) -> None:
    _norm(lowering, node, x, weight=offset(weight), bias=offset(bias))


def _norm(lowering: Lowering, node: Tensor, x: Tensor, **vectors: int) -> None:
    y = lowering.new(node)
    quantized, written = lowering.quantized_with(node)
    size = node.shape[-1]
    assert isinstance(size, int)
    lowering.call(
        node.op,
        (lowering.buffer(x),),
        (y, *written),
        dim=lowering.dim(node),
        weights=lowering.weights,
        heads=width(node) // size,
        size=size,
        eps=node.attributes["eps"],
        x=lowering.buffer(x),
        y=y,
        quantized=quantized,
        **vectors,
    )


def linear(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight, bias: Weight | None = None) -> None:
    if node not in lowering.sums:
        _product(lowering, node, node, None)


def product(lowering: Lowering, node: Tensor, x: Tensor, weight: Weight) -> None:
    y = lowering.new(node)
    lowering.call(
        "product",
        (lowering.buffer(x),),
        (y,),
        dim=lowering.dim(node),
        depth=weight.shape[0],
        width=width(node),
        weights=lowering.weights,
        matrix=offset(weight),
        x=lowering.buffer(x),
        y=y,
    )


def add(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    for product, residual in ((b, a), (a, b)):
        if lowering.sums.get(product) is node:
            _product(lowering, node, product, residual)
            return
    y = lowering.new(node)
    lowering.call(
        "add",
        (lowering.buffer(a), lowering.buffer(b)),
        (y,),
        dim=lowering.dim(node),
        width=width(node),
        a=lowering.buffer(a),
        b=lowering.buffer(b),
        y=y,
    )


def _product(lowering: Lowering, node: Tensor, product: Tensor, residual: Tensor | None) -> None:
    """A matrix product, plus the residual that is added to it; `node` is the result of both."""
    x, weight, *rest = product.operands
    assert isinstance(x, Tensor)
    assert isinstance(weight, Weight)
    bias = rest[0] if rest else None
    y = lowering.new(node)
    source = lowering.quantized_form(x) if is_quantized_product(product) else lowering.buffer(x)
    added = () if residual is None else (lowering.buffer(residual),)
    lowering.call(
        "matmul",
        (source, *added),
        (y,),
        dim=lowering.dim(node),
        weight=weight.handle,
        x=0 if is_quantized_product(product) else source,
        quantized=source if is_quantized_product(product) else -1,
        weights=lowering.weights,
        bias=offset(bias) if isinstance(bias, Weight) else -1,
        residual=-1 if residual is None else lowering.buffer(residual),
        y=y,
    )
