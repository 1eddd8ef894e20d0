"""Ling 2 (Ling Team 2025), and Sarvam's models, whose rope rotates whole heads."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import full_expert_metadata, rotated
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("norm_head", False)
    config.expect("use_qk_norm", True)
    size, shared = config.get("moe_intermediate_size", int), config.get("num_shared_experts", int)
    is_sarvam = _is_sarvam(config)
    return (
        common_metadata(config)
        | full_expert_metadata(config)
        | {
            "expert_shared_feed_forward_length": config.get(
                "moe_shared_expert_intermediate_size", int, size * shared
            ),
            "rope.dimension_count": rotated(config, 1.0 if is_sarvam else 0.5),
            "vocab_size": config.get("vocab_size", int),
        }
        | block_metadata(config)
    )


def _is_sarvam(config: Config) -> bool:
    return any("Sarvam" in str(name) for name in config.list("architectures", str))


def special(config: Config) -> Mapping[str, Special]:
    if not _is_sarvam(config):
        return {}
    return {"exp_probs_b": Special(function=lambda values: values - values.mean())}


FAMILY = derived_family("bailingmoe2", metadata, special)
CHECKPOINTS = (
    "BailingMoeV2ForCausalLM",
    "SarvamMoEForCausalLM",
    "modeling_sarvam_moe.SarvamMoEForCausalLM",
)
