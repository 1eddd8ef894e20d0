"""Ling (Ling Team 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.family import rotation
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Arrange


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("norm_head", False)
    return (
        common_metadata(config)
        | expert_metadata(
            config,
            "expert_feed_forward_length",
            "expert_shared_count",
            "expert_weights_norm",
            "leading_dense_block_count",
        )
        | {
            "expert_weights_scale": 1.0,
            "rope.dimension_count": head_size(config),
            "vocab_size": config.get("vocab_size", int),
        }
    )


def _rows(first: int, count: int, heads: int) -> Arrange:
    """Return the arrangement that takes rows out of a joined matrix, for a rope of adjacent elements."""

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        part = values[first : first + count]
        return rotation(heads)(part) if heads else part

    return arrange


def special(config: Config) -> Mapping[str, Special]:
    heads, size = config.get("num_attention_heads", int), head_size(config)
    kv_heads = config.get("num_key_value_heads", int, heads)
    rows = (heads + 2 * kv_heads) * size
    parts = {"attn_q": (0, heads, heads), "attn_k": (heads, kv_heads, kv_heads)}
    parts["attn_v"] = (heads + kv_heads, kv_heads, 0)
    return {
        name: Special(
            sources=("attention.query_key_value",),
            arrange=_rows(first * size, count * size, turned),
            source_shape=lambda shape: (rows, *shape[1:]),
        )
        for name, (first, count, turned) in parts.items()
    }


FAMILY = derived_family("bailingmoe", metadata, special)
CHECKPOINTS = ("BailingMoeForCausalLM",)
