"""dots.llm1 (Huo et al. 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import full_expert_metadata
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("layer_types", ["full_attention"] * config.count("num_hidden_layers"))
    config.expect("scoring_func", "sigmoid", "noaux_tc")
    entries = common_metadata(config) | full_expert_metadata(
        config.over(Config(config.path, {"scoring_func": "sigmoid"}))
    )
    return entries | {"context_length": config.get("max_position_embeddings", int)}


FAMILY = derived_family("dots1", metadata)
CHECKPOINTS = ("Dots1ForCausalLM",)
