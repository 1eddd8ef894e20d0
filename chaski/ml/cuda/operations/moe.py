"""A mixture of experts without its products: from the router to the sum over a token's experts."""

from __future__ import annotations

from chaski.ml.cuda.device import Program
from chaski.ml.cuda.lowering import Constant, Kernel, Lowering, Sizes, vector_of
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

_LANES = 16
_PROGRAM = Program("experts")


def router(lowering: Lowering, node: Tensor, logits: Tensor, other: Weight | Tensor | None = None) -> None:
    """Lower a router. `other` is the bias of experts, or tokens that a table has the experts of."""
    bias = other if isinstance(other, Weight) else None
    tokens = other if isinstance(other, Tensor) else None
    table = None if tokens is None else Constant(node.attributes["table"])
    if tokens is not None:
        lowering.check(tokens, len(node.attributes["table"]))
    experts, dim, given = width(logits), lowering.dim(node), node.attributes
    count, groups = int(given["count"]), int(given["groups"])

    def choose(sizes: Sizes) -> Kernel:
        tokens = 2 if sizes[dim] <= 2 else 4  # per thread block, which consists of whole warps
        shared = 4 * tokens * (3 * experts + count + groups)
        return Kernel(_PROGRAM, "router", (-(-sizes[dim] // tokens), 1, 1), _LANES * tokens, shared)

    lowering.step(
        choose,
        *(logits, lowering.count(node), experts, count, int(given["gating"]), int(given["normalized"])),
        *(float(given["scale"]), groups, int(given["used_groups"]), int(given["best_of_group"])),
        *(vector_of(bias), tokens, table, lowering.new(node)),
    )


def scale_experts(lowering: Lowering, node: Tensor, routes: Tensor, scales: Weight) -> None:
    count = width(node) // 2
    arguments = (routes, lowering.count(node), scales.shape[0], count, vector_of(scales), lowering.new(node))
    lowering.for_each("experts", "scale_experts", node, count, *arguments)


def scale_by_expert(lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, scales: Weight) -> None:
    sizes = (*node.shape[1:], scales.shape[0])
    arguments = (x, lowering.count(node), *sizes, vector_of(scales), groups)
    lowering.for_each("experts", "scale_by_expert", node, width(node), *arguments, lowering.new(node))


def group_by_expert(lowering: Lowering, node: Tensor, routes: Tensor, places: Tensor | None = None) -> None:
    experts, count = int(node.attributes["experts"]), node.shape[1]
    matrices = int(node.attributes.get("matrices", experts))
    if places is not None:
        lowering.check(places, matrices + 1)

    def choose(sizes: Sizes) -> Kernel:
        threads, shared = min(1024, 32 * (matrices + 1)), 8 * (matrices + 1)
        return Kernel(_PROGRAM, "group_by_expert", (1, 1, 1), threads, shared)

    sizes = experts, count, matrices
    lowering.step(choose, routes, lowering.count(node), *sizes, places, lowering.new(node))


def join_experts(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, other: Tensor, other_groups: Tensor
) -> None:
    arguments = (x, lowering.count(node), *node.shape[1:], groups, other, other_groups, lowering.new(node))
    lowering.for_each("experts", node.op, node, width(node), *arguments)


def dispatch(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None
) -> None:
    if node not in lowering.rounding.dispatched:
        _sorted(lowering, node, x, width(x), groups, routes)


def combine(
    lowering: Lowering, node: Tensor, x: Tensor, groups: Tensor, routes: Tensor | None = None
) -> None:
    _sorted(lowering, node, x, width(node), groups, routes)


def _sorted(
    lowering: Lowering, node: Tensor, x: Tensor, columns: int, groups: Tensor, routes: Tensor | None
) -> None:
    arguments = (x, lowering.count(node), groups.shape[1], columns, routes, groups, lowering.new(node))
    lowering.for_each("experts", node.op, node, width(node), *arguments)
