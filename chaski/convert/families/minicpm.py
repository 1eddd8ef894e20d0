"""MiniCPM 1, 2 and 4 (Hu et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.longrope import LONGROPE, is_longrope, longrope_magnitude, trained_length
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    hidden = config.get("hidden_size", int)
    depth = config.count("num_hidden_layers")
    entries = common_metadata(config, rope_tensors=LONGROPE)
    if is_longrope(config):
        entries |= {"rope.scaling.type": "longrope"} | _stretched(config)
    return entries | {
        "embedding_scale": config.get("scale_emb", float),
        "logit_scale": hidden / config.get("dim_model_base", int),
        "residual_scale": config.get("scale_depth", float) / depth**0.5,
    }


def _stretched(config: Config) -> Metadata:
    """Return the keys for a context that is longer than the trained one."""
    trained = trained_length(config)
    if trained == config.get("max_position_embeddings", int):
        return {}
    return {
        "rope.scaling.attn_factor": longrope_magnitude(config),
        "rope.scaling.original_context_length": trained,
    }


FAMILY = derived_family("minicpm", metadata, rotated_heads)
CHECKPOINTS = ("MiniCPMForCausalLM",)
