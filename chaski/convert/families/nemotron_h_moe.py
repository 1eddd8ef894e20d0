"""Nemotron 3 Nano and Super (NVIDIA 2025): Nemotron H with experts."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.blocks import mtp_blocks, num_blocks
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
    entries = entries | {"moe_latent_size": latent} if latent else entries
    return entries | _with_block(entries, config) if _has_block(config) else entries


def _has_block(config: Config) -> bool:
    """Return whether there is one block of one layer that attends and one of experts."""
    pattern = config.get("mtp_hybrid_override_pattern", str, "")
    kinds = config.list("mtp_layers_block_type", str) or list(pattern or "*E")
    return num_blocks(config) == 1 and [kind in nemotron_h.ATTENDS for kind in kinds] == [True, False]


def _with_block(entries: Metadata, config: Config) -> Metadata:
    """Return the keys that count the block as one layer."""
    more = {
        "attention.head_count_kv": config.get("num_key_value_heads", int),
        "feed_forward_length": config.get("moe_intermediate_size", int),
    }
    lists = {key: [*values, more[key]] for key, values in entries.items() if isinstance(values, list)}
    return {**lists, "block_count": len(nemotron_h.kinds(config)) + 1, "nextn_predict_layers": 1}


def _left_out(config: Config) -> list[str]:
    return [] if _has_block(config) else mtp_blocks(config)


_OF_EXPERTS = {
    "exp_probs_b": "gate.e_score_correction_bias",
    "ffn_down_exps": "experts.{e}.down_proj",
    "ffn_down_shexp": "shared_experts.down_proj",
    "ffn_gate_inp": "gate",
    "ffn_latent_down": "fc1_latent_proj",
    "ffn_latent_up": "fc2_latent_proj",
    "ffn_up_exps": "experts.{e}.up_proj",
    "ffn_up_shexp": "shared_experts.up_proj",
}
"""Tensors of `mixer`. In a block, they are those of its second layer."""


def special(config: Config) -> Mapping[str, Special]:
    return {
        **nemotron_h.special(config),
        **{
            name: Special(sources=(f"mixer.{source}", f"layers.1.mixer.{source}"))
            for name, source in _OF_EXPERTS.items()
        },
        "post_attention_norm": Special(sources=("layers.1.norm",)),
        "nextn.shared_head_norm": Special(sources=("layers.1.final_layernorm",)),
    }


FAMILY = derived_family("nemotron_h_moe", metadata, special, left_out=_left_out)
