"""Phi 3.5 with experts (Abdin et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.families import phi3
from chaski.convert.metadata import Metadata, rope
from chaski.errors import UnsupportedError


def metadata(config: Config) -> Metadata:
    config.expect("router_jitter_noise", 0.01)
    config.expect("num_experts_per_tok", 2)
    entries = phi3.metadata(config) | expert_metadata(config)
    settings = rope(config)
    if "short_mscale" in settings:
        short, long = (settings.get(f"{name}_mscale", float) for name in ("short", "long"))
        if short != long:
            raise UnsupportedError(f"{config.path}: two factors of attention cannot be converted")
        entries["rope.scaling.attn_factor"] = short
    return entries


FAMILY = derived_family("phimoe", metadata)
CHECKPOINTS = ("PhiMoEForCausalLM", "PhimoeForCausalLM")
