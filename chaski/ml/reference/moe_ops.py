"""The definition of the operations of a mixture of experts, in NumPy and float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaski.ml.moe_ops import NEARNESS, Gating

__all__ = [
    "combine",
    "dispatch",
    "group_by_expert",
    "join_experts",
    "router",
    "scale_by_expert",
    "scale_experts",
]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def router(
    logits: F32,
    bias_or_tokens: F32 | I32 | None = None,
    *,
    count: int,
    gating: Gating,
    normalized: bool,
    scale: float,
    groups: int,
    used_groups: int,
    best_of_group: int,
    table: I32 | None = None,
) -> F32:
    scores = logits
    if gating is Gating.SOFTMAX:
        scores = _softmax(logits)
    elif gating is Gating.SIGMOID:
        scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    elif gating is Gating.SQRT_SOFTPLUS:
        scores = np.sqrt(np.logaddexp(np.float32(0), logits))
    if table is not None:
        assert bias_or_tokens is not None
        chosen = table[bias_or_tokens.astype(np.int32)].astype(np.intp)
    else:
        ranks = scores if bias_or_tokens is None else scores + bias_or_tokens
        if groups > 1:
            ranks = _limited(ranks, groups, used_groups, best_of_group)
        chosen = np.argsort(-ranks, axis=1, kind="stable")[:, :count]
    weights = np.take_along_axis(scores, chosen, axis=1)
    if gating is Gating.CHOSEN_SOFTMAX:
        weights = _softmax(weights)
    elif gating is Gating.NEAREST:
        weights = _shares_of_nearest(logits, chosen)
    if normalized:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.stack([chosen.astype(np.float32), weights * np.float32(scale)], axis=1)


def scale_experts(routes: F32, scales: F32) -> F32:
    chosen, weights = routes[:, 0], routes[:, 1]
    return np.stack([chosen, weights * scales[chosen.astype(np.int32)]], axis=1)


def scale_by_expert(x: F32, groups: I32, scales: F32) -> F32:
    _, _, experts, ends = groups.reshape(-1, 4).T
    sizes = np.diff(ends, prepend=0)
    y = x.copy()
    rows = y.reshape(-1, x.shape[2])[: sizes.sum()]
    rows *= np.repeat(scales[experts], sizes)[:, None]
    return y


def group_by_expert(
    routes: F32,
    places: I32 | None = None,
    *,
    experts: int,
    repeats: bool,
    matrices: int | None = None,
) -> I32:
    assert repeats or all(len(set(row)) == len(row) for row in routes[:, 0].tolist()), "an expert twice"
    of_pairs = routes[:, 0].ravel().astype(np.int32)
    if places is not None:
        of_pairs = places[of_pairs]
    groups = np.empty((len(of_pairs), 4), np.int32)
    groups[:, 0] = np.argsort(of_pairs, kind="stable")
    groups[groups[:, 0], 1] = np.arange(len(of_pairs))
    chosen, sizes = np.unique(of_pairs[of_pairs != matrices], return_counts=True)
    groups[:, 2:] = 0, sizes.sum()
    groups[: len(chosen), 2] = chosen
    groups[: len(chosen), 3] = np.cumsum(sizes)
    return groups.reshape(len(routes), routes.shape[2], 4)


def dispatch(x: F32, groups: I32, routes: F32 | None = None) -> F32:
    count = groups.shape[1]
    pairs = groups[..., 0].ravel()
    rows: F32 = x[pairs // count]
    if routes is not None:
        rows = rows * routes[:, 1].ravel()[pairs, None]
    return rows.reshape(len(x), count, x.shape[1])


def join_experts(x: F32, groups: I32, other: F32, other_groups: I32) -> F32:
    pairs, own = groups[..., 0].ravel(), groups.reshape(-1, 4)[-1:, 3].sum()
    y = x.copy().reshape(-1, x.shape[2])
    y[own:] = other.reshape(y.shape)[other_groups[..., 1].ravel()[pairs[own:]]]
    return y.reshape(x.shape)


def combine(x: F32, groups: I32, routes: F32 | None = None) -> F32:
    of_pairs = x.reshape(-1, x.shape[2])[groups[..., 1].ravel()].reshape(x.shape)
    if routes is not None:
        of_pairs = of_pairs * routes[:, 1, :, None]
    y: F32 = of_pairs.sum(axis=1)
    return y


def _shares_of_nearest(logits: F32, chosen: npt.NDArray[np.intp]) -> F32:
    left, shares = logits.copy(), []
    for expert in chosen.T[..., None]:
        best = np.take_along_axis(left, expert, axis=1)
        with np.errstate(invalid="ignore"):
            is_far = (best - logits) / np.maximum(np.abs(logits), best) > np.float32(NEARNESS)
        near = np.where(is_far, np.float32(-np.inf), left)
        shares.append(np.take_along_axis(_softmax(near), expert, axis=1))
        np.put_along_axis(left, expert, -np.inf, axis=1)
    return np.concatenate(shares, axis=1)


def _limited(ranks: F32, groups: int, used: int, best: int) -> F32:
    """Return the ranks, with minus infinity for the experts of unused groups."""
    of_groups = ranks.reshape(len(ranks), groups, -1)
    highest = -np.sort(-of_groups, axis=2)[..., :best]
    chosen = np.argsort(-highest.sum(axis=2), axis=1, kind="stable")[:, :used]
    limited = np.full_like(of_groups, -np.inf)
    np.put_along_axis(limited, chosen[..., None], np.take_along_axis(of_groups, chosen[..., None], 1), 1)
    return limited.reshape(ranks.shape)


def _softmax(x: F32) -> F32:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    y: F32 = powers / powers.sum(axis=1, keepdims=True)
    return y
