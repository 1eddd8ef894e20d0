"""Command R (Cohere 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, rope


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    rope(config).expect("rope_type", "default")
    length = config.get("max_position_embeddings", int)
    return common_metadata(config) | {
        "context_length": config.get("model_max_length", int, length),
        "logit_scale": config.get("logit_scale", float),
        "rope.scaling.type": "none",
    }


# Configurations do not say that the output is tied.
FAMILY = derived_family("command-r", metadata, defaults={"tie_word_embeddings": True})
CHECKPOINTS = ("CohereForCausalLM",)
