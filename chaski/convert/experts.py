"""Metadata of a mixture of experts, from common configuration keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from chaski.convert.config import Config
from chaski.convert.metadata import Metadata, head_size, rope
from chaski.errors import UnsupportedError
from chaski.ml.moe_ops import Gating

__all__ = ["expert_metadata", "first", "full_expert_metadata", "rotated"]

T = TypeVar("T", int, float, bool, str)

_COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_USED = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k")
_SCORES = ("score_function", "scoring_func", "score_func", "moe_router_activation", "expert_selection_fn")
_STATED: Mapping[str, tuple[str, type[int] | type[float] | type[bool]]] = {
    "expert_feed_forward_length": ("moe_intermediate_size", int),
    "expert_shared_count": ("n_shared_experts num_shared_experts moe_num_shared_experts", int),
    "expert_weights_norm": ("norm_topk_prob route_norm", bool),
    "expert_weights_scale": ("routed_scaling_factor route_scale", float),
    "leading_dense_block_count": ("first_k_dense_replace num_dense_layers", int),
}
"""GGUF's keys that not all families have, the names in configurations, and the kind of value."""

_GATINGS = {"softmax": Gating.SOFTMAX, "sigmoid": Gating.SIGMOID, "sqrtsoftplus": Gating.SQRT_SOFTPLUS}


def first(config: Config, names: tuple[str, ...], kind: type[T]) -> T:
    """Return the value of the first of these keys that the configuration has."""
    return config.get(next((name for name in names if name in config), names[0]), kind)


def expert_metadata(config: Config, *more: str) -> Metadata:
    """Return the keys for the number of experts and the choice among them, as far as they are stated.

    more: further keys of GGUF that the family has.
    """
    entries: Metadata = {}
    for key, names in (("expert_count", _COUNT), ("expert_used_count", _USED)):
        if any(name in config for name in names):
            entries[key] = first(config, names, int)
    for key, name in (("expert_group_count", "n_group"), ("expert_group_used_count", "topk_group")):
        if name in config:
            entries[key] = config.get(name, int)
    if any(name in config for name in _SCORES):
        gating = first(config, _SCORES, str)
        if gating not in _GATINGS:
            raise UnsupportedError(f"{config.path}: experts chosen by {gating!r:.40} cannot be converted")
        entries["expert_gating_func"] = _GATINGS[gating] + 1
    for key in more:
        listed, kind = _STATED[key]
        stated = tuple(listed.split())
        if any(name in config for name in stated):
            entries[key] = first(config, stated, kind)
    return entries


def full_expert_metadata(config: Config) -> Metadata:
    """Return `expert_metadata` with every further key that the configuration states."""
    return expert_metadata(config, *_STATED)


def rotated(config: Config, share: float = 1.0) -> int:
    """Return how many elements of each head the rope rotates; `share` is the default of the configuration."""
    share = config.get("partial_rotary_factor", float, share)
    return int(head_size(config) * rope(config).get("partial_rotary_factor", float, share))
