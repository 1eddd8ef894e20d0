"""Operations of a mixture of experts (MoE): route tokens to experts, sort rows by expert, multiply, add up.

`chaski.ml.reference.moe_ops` defines each operation in NumPy. A token that chooses `count` experts makes
`count` pairs. From `dispatch` to `combine` there is one row per pair, sorted by expert and then by token, so
that each chosen expert is read once. The shape of these rows is (n, count, …), but only the product n · count
has a meaning.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chaski.ml.graph import DType, Tensor, Weight, require
from chaski.ml.products import expert_linear

__all__ = [
    "NEARNESS",
    "ExpertPlaces",
    "Gating",
    "Groups",
    "RouteTable",
    "combine",
    "dispatch",
    "expert_linear",
    "group_by_expert",
    "join_experts",
    "router",
    "scale_by_expert",
    "scale_experts",
]


NEARNESS = 0.02
"""The largest distance of logits that count as near; see `Gating.NEAREST`."""


class Gating(IntEnum):
    """Function of the router's logits. All but the last are the metadata's `expert_gating_func` minus 1."""

    SOFTMAX = 0
    SIGMOID = 1
    CHOSEN_SOFTMAX = 2
    """Softmax over the logits of the chosen experts only."""
    SQRT_SOFTPLUS = 3
    """The square root of ln(1 + e^logit) (DeepSeek V4)."""
    NEAREST = 4
    """SparseMixer (Liu et al. 2024): the share of a choice among the experts whose logits are near its own.

    Of the experts that are not chosen yet, the best has the logit b. Those with logits s near it, for which
    (b - s) / max(|s|, b) is at most 0.02, take part in a softmax, in which the best has the weight.
    """


class RouteTable(Struct, frozen=True):
    """The experts of `tokens` (n,) int32: rows of `experts` (vocabulary, count)."""

    tokens: Tensor
    experts: npt.NDArray[np.int32]


class ExpertPlaces(Struct, frozen=True):
    """The experts of a layer that one of several devices has, in stacks of `matrices` matrices.

    `numbers` (experts,) int32 contains the number of each expert's matrix in the stacks. The number
    `matrices` stands for an expert that is elsewhere.
    """

    numbers: Tensor
    matrices: int


class Groups(Struct, frozen=True):
    """Limits a token's choice to the experts of its best groups (DeepSeek V2 and V3).

    Expert e of `experts` belongs to group e · count // experts. The rank of a group is the sum of its `best`
    highest ranks of experts, in descending order. The token chooses among the experts of the `used` groups
    with the highest rank; of equal ones, the group with the lower number comes first.
    """

    count: int = 1
    used: int = 1
    best: int = 2


ONE_GROUP = Groups()
"""No limit."""


def router(
    logits: Tensor,
    count: int,
    gating: Gating,
    *,
    normalized: bool = False,
    scale: float = 1.0,
    bias: Weight | None = None,
    groups: Groups = ONE_GROUP,
    table: RouteTable | None = None,
) -> Tensor:
    """Choose `count` experts for each token by logits (n, experts) -> (n, 2, count): [numbers, weights].

    An expert's rank is its score plus `bias` (experts,). The experts with the highest rank are chosen, best
    first; of equal ones, the lower number comes first. `groups` limits the choice. Weights are scores without
    the bias, divided by their sum if `normalized`, times `scale`. `table` replaces the choice by rank.
    """
    experts = logits.shape[1]
    if not isinstance(experts, int) or not 0 < count <= experts:
        raise ValueError(f"router: {count} of {experts} experts cannot be chosen")
    if groups.count > 1:
        size = experts // groups.count
        if (
            experts % groups.count
            or not 0 < groups.best <= size
            or not count <= groups.used * size <= experts
        ):
            raise ValueError(
                f"router: {groups.used} of {groups.count} groups of {experts} experts cannot be used"
            )
    operands: tuple[Tensor | Weight, ...] = (logits,) if bias is None else (logits, bias)
    fixed: dict[str, Any] = {}
    if table is not None:
        require(bias is None and table.experts.shape[1:] == (count,), "router", count, table.experts.shape)
        operands = (logits, table.tokens)
        fixed = {"table": np.ascontiguousarray(table.experts, np.int32)}
    return logits.graph.record(
        "router",
        operands,
        (logits.shape[0], 2, count),
        count=count,
        gating=gating,
        normalized=normalized,
        scale=scale,
        groups=groups.count,
        used_groups=groups.used,
        best_of_group=groups.best,
        **fixed,
    )


def scale_experts(routes: Tensor, scales: Weight) -> Tensor:
    """Multiply the weights in `routes` (n, 2, count) by the `scales` (experts,) of their experts."""
    return routes.graph.record("scale_experts", (routes, scales), routes.shape)


def scale_by_expert(x: Tensor, groups: Tensor, scales: Weight) -> Tensor:
    """Multiply each row of x (n, count, size) by the number of its expert in `scales` (experts,)."""
    require(x.shape[:2] == groups.shape[:2], "scale_by_expert", x.shape, groups.shape)
    return x.graph.record("scale_by_expert", (x, groups, scales), x.shape)


def group_by_expert(
    routes: Tensor, experts: int, repeats: bool = False, places: ExpertPlaces | None = None
) -> Tensor:
    """Return the order of rows for `routes` (n, 2, count) -> (n, count, 4) int32, for the operations below.

    It contains four lists of n · count entries: the pair of each row, the row of each pair, the numbers of
    the chosen experts in ascending order, and the end of each one's rows. Entries after the last chosen
    expert are experts without rows. `repeats`: a token may have the same expert several times.

    With `places`, the numbers are those of matrices, in ascending order. The last rows are those of experts
    that are elsewhere: they have places among rows, but no expert multiplies them.
    """
    shape = (routes.shape[0], routes.shape[2], 4)
    given = {"experts": experts, "repeats": repeats}
    if places is None:
        return routes.graph.record("group_by_expert", (routes,), shape, DType.I32, **given)
    operands = routes, places.numbers
    return routes.graph.record(
        "group_by_expert", operands, shape, DType.I32, **given, matrices=places.matrices
    )


def join_experts(x: Tensor, groups: Tensor, other: Tensor, other_groups: Tensor) -> Tensor:
    """Return x (n, count, size) with the rows of experts that are elsewhere taken from `other`.

    `groups` and `other_groups` are the orders of both, where each expert is in one of the places.
    """
    is_alike = x.shape == other.shape and groups.shape == other_groups.shape
    require(is_alike, "join_experts", x.shape, other.shape)
    return x.graph.record("join_experts", (x, groups, other, other_groups), x.shape)


def dispatch(x: Tensor, groups: Tensor, routes: Tensor | None = None) -> Tensor:
    """Sort rows of tokens (n, size) -> rows of pairs (n, count, size), times their weights in `routes`."""
    operands = (x, groups) if routes is None else (x, groups, routes)
    return x.graph.record("dispatch", operands, (x.shape[0], groups.shape[1], *x.shape[1:]))


def combine(x: Tensor, groups: Tensor, routes: Tensor | None = None) -> Tensor:
    """Add up each token's rows of x (n, count, size), in the order of its choices -> (n, size).

    With `routes` each row is multiplied by its weight.
    """
    operands = (x, groups) if routes is None else (x, groups, routes)
    return x.graph.record("combine", operands, (x.shape[0], *x.shape[2:]))
