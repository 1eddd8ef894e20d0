"""Mellum 2 (JetBrains 2026)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, rope, windows

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    layers, near = config.count("num_hidden_layers"), rope(config, "sliding_attention")
    config.expect("hidden_act", "silu")
    config.expect("norm_topk_prob", True)
    config.expect("mlp_layer_types", ["sparse"] * layers)
    near.expect("rope_type", "default")
    return (
        common_metadata(config)
        | expert_metadata(config, "expert_feed_forward_length")
        | {
            "context_length": config.get("max_position_embeddings", int),
            "rope.freq_base_swa": near.get("rope_theta", float),
        }
        | windows(config, _PERIOD)
    )


FAMILY = derived_family("mellum", metadata)
CHECKPOINTS = ("MellumForCausalLM",)
