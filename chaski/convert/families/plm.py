"""PLM (PLM Team 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.latent import joined_heads
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "relu2")
    turned = config.get("qk_rope_head_dim", int)
    return common_metadata(config) | {
        "attention.key_length": config.get("qk_nope_head_dim", int) + turned,
        "attention.kv_lora_rank": config.get("kv_lora_rank", int),
        "attention.value_length": config.get("v_head_dim", int),
        "rope.dimension_count": turned,
        "vocab_size": config.get("vocab_size", int),
    }


FAMILY = derived_family("plm", metadata, joined_heads)
CHECKPOINTS = ("PLMForCausalLM",)
