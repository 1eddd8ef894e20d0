"""Nemotron 3 Nano and Super (NVIDIA 2025): Nemotron H with experts."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.blocks import mtp_blocks
from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.families import nemotron_h
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    config.expect("topk_group", 1)
    config.expect("n_group", 1)
    entries = nemotron_h.metadata(config, "moe_intermediate_size") | {
        "expert_count": config.get("n_routed_experts", int),
        "expert_feed_forward_length": config.get("moe_intermediate_size", int),
        "expert_group_count": config.get("n_group", int, 1),
        "expert_group_used_count": config.get("topk_group", int, 1),
        "expert_shared_count": config.get("n_shared_experts", int, 1),
        "expert_shared_feed_forward_length": config.get("moe_shared_expert_intermediate_size", int),
        "expert_used_count": config.get("num_experts_per_tok", int),
        "expert_weights_norm": config.get("norm_topk_prob", bool, True),
        "expert_weights_scale": config.get("routed_scaling_factor", float, 1.0),
    }
    latent = config.get("moe_latent_size", int, 0)
    return entries | {"moe_latent_size": latent} if latent else entries


def special(config: Config) -> Mapping[str, Special]:
    return {
        **nemotron_h.special(config),
        "ffn_latent_down": Special(sources=("mixer.fc1_latent_proj",)),
        "ffn_latent_up": Special(sources=("mixer.fc2_latent_proj",)),
    }


FAMILY = derived_family("nemotron_h_moe", metadata, special, left_out=mtp_blocks)
