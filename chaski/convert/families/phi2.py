"""Phi 1 to 2 (Gunasekar et al. 2023)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata, common_metadata, num_rotated, with_usual_rope

_ROTATED = 0.5


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "gelu_new")
    config.expect("qk_layernorm", False)
    return with_usual_rope(config, common_metadata(config)) | {
        "rope.dimension_count": num_rotated(config, _ROTATED)
    }


def special(config: Config) -> Specials:
    return {"attn_output": Special(sources=("self_attn.dense",))}


FAMILY = derived_family("phi2", metadata, special)
CHECKPOINTS = ("PhiForCausalLM",)
