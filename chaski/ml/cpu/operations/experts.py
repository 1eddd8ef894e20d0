"""A mixture of experts, from the router to the sum over the experts of a token."""

from __future__ import annotations

from chaski.ml.cpu.lowering import Lowering, is_quantized_product, offset, width
from chaski.ml.graph import Tensor, Weight

__all__ = ["combine", "dispatch", "expert_linear", "group", "route"]


def route(lowering: Lowering, node: Tensor, logits: Tensor, bias: Weight | None = None) -> None:
    y = lowering.new(node)
    lowering.call(
        "route",
        (lowering.buffer(logits),),
        (y,),
        dim=lowering.dim(node),
        experts=width(logits),
        weights=lowering.weights,
        bias=offset(bias),
        x=lowering.buffer(logits),
        y=y,
        **node.attributes,
    )


def group(lowering: Lowering, node: Tensor, routes: Tensor) -> None:
    y, source = lowering.new(node), lowering.buffer(routes)
    arguments = {"dim": lowering.dim(node), "count": node.shape[1], **node.attributes}
    lowering.call("group", (source,), (y,), routes=source, y=y, **arguments)


def dispatch(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None
) -> None:
    order, arguments = lowering.buffer(groups), {"dim": lowering.dim(node), "count": groups.shape[1]}
    arguments["width"] = width(x)
    if routes is None and node in lowering.quantized_inputs:
        source, target = lowering.quantized_form(x), lowering.new_quantized(node)
        lowering.call(
            "dispatch_quantized",
            (source, order),
            (target,),
            x=source,
            groups=order,
            y=target,
            **arguments,
        )
        return
    y = lowering.new(node)
    weights = () if routes is None else (lowering.buffer(routes),)
    lowering.call(
        "dispatch",
        (lowering.buffer(x), order, *weights),
        (y,),
        x=lowering.buffer(x),
        routes=weights[0] if weights else -1,
        groups=order,
        y=y,
        **arguments,
    )


def expert_linear(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, weight: Weight, bias: Weight | None = None
) -> None:
    y, order = lowering.new(node), lowering.buffer(groups)
    is_quantized = is_quantized_product(node)
    source = lowering.quantized_form(x) if is_quantized else lowering.buffer(x)
    lowering.call(
        "expert_matmul",
        (source, order),
        (y,),
        dim=lowering.dim(node),
        count=groups.shape[1],
        experts=weight.handle,
        weights=lowering.weights,
        bias=offset(bias),
        x=0 if is_quantized else source,
        quantized=source if is_quantized else -1,
        groups=order,
        y=y,
    )


def combine(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None
) -> None:
    y, order = lowering.new(node), lowering.buffer(groups)
    weights = () if routes is None else (lowering.buffer(routes),)
    lowering.call(
        "combine",
        (lowering.buffer(x), order, *weights),
        (y,),
        dim=lowering.dim(node),
        count=groups.shape[1],
        width=width(node),
        x=lowering.buffer(x),
        routes=weights[0] if weights else -1,
        groups=order,
        y=y,
    )
