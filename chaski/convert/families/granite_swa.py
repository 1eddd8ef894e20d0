"""Granite 4.1 with windows (Granite Team 2026), dense."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family, rotated_heads
from chaski.convert.families import granite
from chaski.convert.metadata import Metadata, rope
from chaski.errors import UnsupportedError


def metadata(config: Config) -> Metadata:
    layers = config.count("num_hidden_layers")
    usual = ["sliding_attention" if layer % 4 else "full_attention" for layer in range(layers)]
    kinds = config.list("layer_types", str) or usual
    entries = granite.metadata(config) | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.sliding_window": config.get("sliding_window", int, 128),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
    }
    bases = config.list("layer_rope_theta", float)
    if not set(bases) <= {0.0, rope(config).get("rope_theta", float, 10000.0)}:
        raise UnsupportedError(
            f"{config.path}: 'layer_rope_theta' has several bases, which cannot be converted"
        )
    return entries | ({"attention.rope_pattern": [base > 0 for base in bases]} if 0.0 in bases else {})


def special(config: Config) -> Mapping[str, Special]:
    return {**rotated_heads(config), "attn_sinks": Special(sources=("self_attn.sinks",))}


FAMILY = derived_family("granite_swa", metadata, special)
CHECKPOINTS = ("GraniteSWAForCausalLM",)
