"""A mixture of experts without its products: from the router to the sum over a token's experts."""

from __future__ import annotations

import numpy as np

from chaski.ml.cpu.lowering import Lowering, offset
from chaski.ml.graph import Tensor, Weight, width

__all__ = [
    "combine",
    "dispatch",
    "group_by_expert",
    "join_experts",
    "router",
    "scale_by_expert",
    "scale_experts",
]


def router(lowering: Lowering, node: Tensor, logits: Tensor, other: Tensor | Weight | None = None) -> None:
    tokens, bias = (other, None) if isinstance(other, Tensor) else (None, other)
    table = node.attributes.get("table", ())
    if tokens is not None and tokens.op == "input":
        lowering.check(tokens, len(table))
    lowering.compute(
        node,
        {"x": logits, "tokens": tokens},
        experts=width(logits),
        weights=lowering.weights,
        bias=offset(bias),
        **{**node.attributes, "table": np.ravel(table).astype(np.int32).tolist()},
    )


def scale_experts(lowering: Lowering, node: Tensor, routes: Tensor, scales: Weight) -> None:
    lowering.compute(
        node,
        {"x": routes},
        experts=scales.shape[0],
        count=node.shape[2],
        weights=lowering.weights,
        scales=offset(scales),
    )


def scale_by_expert(lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, scales: Weight) -> None:
    lowering.compute(
        node,
        {"x": x, "groups": groups},
        experts=scales.shape[0],
        count=groups.shape[1],
        width=node.shape[2],
        weights=lowering.weights,
        scales=offset(scales),
    )


def group_by_expert(lowering: Lowering, node: Tensor, routes: Tensor, places: Tensor | None = None) -> None:
    experts = node.attributes["experts"]
    matrices = node.attributes.get("matrices", experts)
    if places is not None:
        lowering.check(places, matrices + 1)
    lowering.compute(
        node,
        {"routes": routes, "places": places},
        count=node.shape[1],
        experts=experts,
        matrices=matrices,
        of_places=lowering.dim(places or node),
    )


def join_experts(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, other: Tensor, other_groups: Tensor
) -> None:
    reads = {"x": x, "groups": groups, "other": other, "other_groups": other_groups}
    lowering.compute(node, reads, count=groups.shape[1], width=node.shape[2])


def dispatch(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None
) -> None:
    """Sort rows by expert, as int8, floats or both: matrices of the same experts may have two types."""
    sizes = {"dim": lowering.dim(node), "count": groups.shape[1], "width": width(x)}
    is_quantized = routes is None and node in lowering.rounding.columns
    if is_quantized:
        source = lowering.quantized_form(x)
        target = lowering.new_quantized(node)
        lowering.call("dispatch_quantized", {"x": source, "groups": groups}, {"y": target}, **sizes)
    if not is_quantized or node in lowering.rounding.floats:
        reads = {"x": x, "routes": routes, "groups": groups}
        lowering.call("dispatch", reads, {"y": lowering.new(node)}, **sizes)


def combine(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None
) -> None:
    reads = {"x": x, "routes": routes, "groups": groups}
    lowering.compute(node, reads, count=groups.shape[1], width=width(node))
