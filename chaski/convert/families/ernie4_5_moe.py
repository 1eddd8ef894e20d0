"""ERNIE 4.5 with experts (Baidu 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("moe_layer_end_index", config.count("num_hidden_layers") - 1)
    size, shared = config.get("moe_intermediate_size", int), config.get("moe_num_shared_experts", int, 0)
    entries = (
        common_metadata(config)
        | expert_metadata(config)
        | {
            "interleave_moe_layer_step": config.get("moe_layer_interval", int, 1),
            "leading_dense_block_count": config.get("moe_layer_start_index", int),
            "expert_feed_forward_length": size,
            "expert_shared_count": shared,
        }
    )
    return entries | ({"expert_shared_feed_forward_length": size * shared} if shared else {})


def special(config: Config) -> Mapping[str, Special]:
    return {"exp_probs_b": Special(source_shape=lambda shape: (1, *shape))}


FAMILY = derived_family(
    "ernie4_5-moe", metadata, special, unused=(r"mtp_(block|emb_norm|hidden_norm|linear_proj)\..*",)
)
CHECKPOINTS = ("Ernie4_5_MoeForCausalLM",)
