"""OLMo 1 (Groeneveld et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    entries = common_metadata(config)
    if "clip_qkv" in config:
        entries["attention.clamp_kqv"] = config.get("clip_qkv", float)
    return entries


FAMILY = derived_family("olmo", metadata, rotated_heads, defaults={"layer_norm_eps": 1e-5})
CHECKPOINTS = ("OlmoForCausalLM", "OLMoForCausalLM")
