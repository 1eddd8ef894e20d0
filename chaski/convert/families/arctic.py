"""Arctic (Snowflake 2024)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family, rotated_heads
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("moe_layer_frequency", 1)
    config.expect("parallel_attn_mlp_res", True)
    return (
        common_metadata(config)
        | expert_metadata(config)
        | {"rope.dimension_count": head_size(config), "vocab_size": config.get("vocab_size", int)}
    )


def special(config: Config) -> Mapping[str, Special]:
    return {
        **rotated_heads(config),
        "ffn_norm": Special(sources=("residual_layernorm",)),
        "ffn_norm_exps": Special(sources=("post_attention_layernorm",)),
        "ffn_gate": Special(sources=("residual_mlp.w1",)),
        "ffn_down": Special(sources=("residual_mlp.w2",)),
        "ffn_up": Special(sources=("residual_mlp.w3",)),
        "ffn_gate_inp": Special(sources=("block_sparse_moe.gate",)),
        "ffn_gate_exps": Special(sources=("block_sparse_moe.experts.{e}.w1",)),
        "ffn_down_exps": Special(sources=("block_sparse_moe.experts.{e}.w2",)),
        "ffn_up_exps": Special(sources=("block_sparse_moe.experts.{e}.w3",)),
    }


FAMILY = derived_family("arctic", metadata, special)
CHECKPOINTS = ("ArcticForCausalLM",)
