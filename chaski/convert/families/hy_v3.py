"""Hunyuan 3 (Tencent 2026)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata
from chaski.ml.moe_ops import Gating


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    size = config.get("moe_intermediate_size", int)
    return (
        common_metadata(config)
        | expert_metadata(config)
        | {
            "expert_feed_forward_length": size,
            "expert_shared_feed_forward_length": size * config.get("num_shared_experts", int, 1),
            "expert_gating_func": Gating.SIGMOID + 1,
            "expert_weights_norm": config.get("route_norm", bool, True),
            "expert_weights_scale": config.get("router_scaling_factor", float, 1.0),
        }
        | block_metadata(config)
    )


def special(config: Config) -> Mapping[str, Special]:
    return {"nextn.shared_head_norm": Special(sources=("final_layernorm",))}


FAMILY = derived_family("hy_v3", metadata, special)
CHECKPOINTS = ("HYV3ForCausalLM",)
