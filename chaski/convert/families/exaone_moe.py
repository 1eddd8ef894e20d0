"""K-EXAONE (LG AI Research 2026)."""

from __future__ import annotations

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import full_expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, rope, windows
from chaski.ml.moe_ops import Gating

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    layers, dense = config.count("num_hidden_layers"), config.get("first_k_dense_replace", int, 0)
    config.expect("hidden_act", "silu")
    rope(config).expect("rope_type", "default", "llama3")
    config.expect("mlp_layer_types", ["dense"] * dense + ["sparse"] * (layers - dense))
    shared = config.get("num_shared_experts", int) * config.get("moe_intermediate_size", int)
    return (
        common_metadata(config, rope_tensors=("llama3",))
        | {"expert_gating_func": Gating.SIGMOID + 1}
        | full_expert_metadata(config)
        | {
            "context_length": config.get("max_position_embeddings", int),
            "vocab_size": config.get("vocab_size", int),
            "expert_shared_feed_forward_length": shared,
            "leading_dense_block_count": dense,
            "rope.scaling.type": "none",
        }
        | windows(config, _PERIOD)
        | block_metadata(config)
    )


FAMILY = derived_family("exaone-moe", metadata)
CHECKPOINTS = ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM")
