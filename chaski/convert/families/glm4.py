"""GLM 4 0414 (GLM Team 2024): four norms in each layer, and a rope for a part of each head."""

from __future__ import annotations

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata, common_metadata, num_rotated

ROTATED = 0.5


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return (
        common_metadata(config)
        | {"rope.dimension_count": num_rotated(config, ROTATED)}
        | block_metadata(config)
    )


def special(config: Config) -> Specials:
    return {"post_attention_norm": Special(sources=("post_self_attn_layernorm",))}


FAMILY = derived_family("glm4", metadata, special)
CHECKPOINTS = ("Glm4ForCausalLM",)
