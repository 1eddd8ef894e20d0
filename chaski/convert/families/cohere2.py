"""Command R7B and Command A (Cohere 2024, 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import command_r
from chaski.convert.metadata import Metadata, head_size, layer_types

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    config.expect("rotary_pct", 1.0)
    config.expect("attention_bias", False)
    config.expect("layer_types", layer_types(config, _PERIOD))
    return command_r.metadata(config) | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.sliding_window": config.get("sliding_window", int),
        "rope.dimension_count": head_size(config),
        "vocab_size": config.get("vocab_size", int),
    }


FAMILY = derived_family("cohere2", metadata, defaults={"tie_word_embeddings": True})
CHECKPOINTS = ("Cohere2ForCausalLM",)
