"""DeepSeek MoE (Dai et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("norm_topk_prob", False)
    config.expect("scoring_func", "softmax")
    config.expect("moe_layer_freq", 1)
    rope(config).expect("rope_type", "default")
    return (
        common_metadata(config)
        | expert_metadata(
            config, "expert_feed_forward_length", "expert_shared_count", "leading_dense_block_count"
        )
        | {
            "expert_weights_scale": 1.0,
            "rope.dimension_count": head_size(config),
            "rope.scaling.type": "none",
            "vocab_size": config.get("vocab_size", int),
        }
    )


FAMILY = derived_family("deepseek", metadata, rotated_heads)
CHECKPOINTS = ("DeepseekForCausalLM",)
