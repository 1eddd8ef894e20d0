"""DeepSeek V2 to V3.1 and R1, and models like them."""

from __future__ import annotations

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import full_expert_metadata
from chaski.convert.latent import latent_metadata, latent_rope, split_heads
from chaski.convert.metadata import Metadata, common_metadata
from chaski.ml.moe_ops import Gating


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("moe_layer_freq", 1)
    entries = common_metadata(config) | latent_metadata(config) | _experts(config)
    entries.pop("rope.scaling.attn_factor", None)
    entries |= latent_rope(config) | block_metadata(config)
    return entries | {"vocab_size": config.get("vocab_size", int)}


def _experts(config: Config) -> Metadata:
    if config.get("n_routed_experts", int, None) is None:
        return {
            "leading_dense_block_count": config.get("num_hidden_layers", int),
            "expert_feed_forward_length": config.get("intermediate_size", int),
            "expert_shared_count": 0,
        }
    entries = full_expert_metadata(config)
    if not entries.get("expert_weights_norm", True):
        del entries["expert_weights_norm"]
    if "expert_gating_func" not in entries:
        is_sigmoid = "topk_method" not in config or config.get("topk_method", str) == "noaux_tc"
        entries["expert_gating_func"] = (Gating.SIGMOID if is_sigmoid else Gating.SOFTMAX) + 1
    return entries


FAMILY = derived_family("deepseek2", metadata, split_heads)
CHECKPOINTS = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "YoutuForCausalLM")
