"""Operations of a mixture of experts (MoE): route tokens to experts, sort rows by expert, multiply, add up.

The meaning of each is its NumPy form in `chaski.ml.reference.moe_ops`. A token that chooses `count`
experts makes `count` pairs. From `dispatch` to `combine` there is one row for each pair, sorted by expert and
then by token, so that each chosen expert is read once. The shape is (n, count, …) then, of which only the
product n · count has a meaning.
"""

from __future__ import annotations

from enum import IntEnum

from chaski.ml.graph import DType, Tensor, Weight
from chaski.ml.products import expert_linear

__all__ = ["Gating", "combine", "dispatch", "expert_linear", "group_by_expert", "router", "scale_experts"]


class Gating(IntEnum):
    """Function of the router's logits: the first two are the metadata's `expert_gating_func`, less 1."""

    SOFTMAX = 0
    SIGMOID = 1
    CHOSEN_SOFTMAX = 2
    """Softmax over the logits of the chosen experts only."""


def router(
    logits: Tensor,
    count: int,
    gating: Gating,
    *,
    normalized: bool = False,
    scale: float = 1.0,
    bias: Weight | None = None,
) -> Tensor:
    """Choose `count` experts for each token by logits (n, experts) -> (n, 2, count): [numbers, weights].

    Chosen are the experts with the highest score plus `bias` (experts,), the best first, the lower number of
    equals first. Weights are scores without the bias, divided by their sum if `normalized`, times `scale`.
    """
    experts = logits.shape[1]
    if not isinstance(experts, int) or not 0 < count <= experts:
        raise ValueError(f"router: {count} of {experts} experts cannot be chosen")
    operands = (logits,) if bias is None else (logits, bias)
    return logits.graph.record(
        "router",
        operands,
        (logits.shape[0], 2, count),
        count=count,
        gating=gating,
        normalized=normalized,
        scale=scale,
    )


def scale_experts(routes: Tensor, scales: Weight) -> Tensor:
    """`routes` (n, 2, count), whose weights are multiplied by `scales` (experts,) of their experts."""
    return routes.graph.record("scale_experts", (routes, scales), routes.shape)


def group_by_expert(routes: Tensor, experts: int) -> Tensor:
    """The order of rows for `routes` (n, 2, count) -> (n, count, 4) int32, for the operations below.

    It has four lists of n · count entries: the pair of a row; the row of a pair; the numbers of the chosen
    experts in ascending order; and where the rows of each of them end. Entries after the last chosen expert
    are experts without rows.
    """
    shape = (routes.shape[0], routes.shape[2], 4)
    return routes.graph.record("group_by_expert", (routes,), shape, DType.I32, experts=experts)


def dispatch(x: Tensor, groups: Tensor, routes: Tensor | None = None) -> Tensor:
    """Rows of tokens (n, size) -> of pairs (n, count, size); with `routes` each times its weight."""
    operands = (x, groups) if routes is None else (x, groups, routes)
    return x.graph.record("dispatch", operands, (x.shape[0], groups.shape[1], *x.shape[1:]))


def combine(x: Tensor, groups: Tensor, routes: Tensor | None = None) -> Tensor:
    """The sum of each token's rows of x (n, count, size) in the order of its choices -> (n, size).

    With `routes` each row is multiplied by its weight.
    """
    operands = (x, groups) if routes is None else (x, groups, routes)
    return x.graph.record("combine", operands, (x.shape[0], *x.shape[2:]))
