"""StableLM 2 and 3B (Bellagente et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Set

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata, common_metadata, num_rotated, with_usual_rope

_ROTATED = 0.25


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return with_usual_rope(config, common_metadata(config)) | {
        "rope.dimension_count": num_rotated(config, _ROTATED),
        "use_parallel_residual": config.get("use_parallel_residual", bool),
    }


def special(config: Config) -> Specials:
    return {
        "attn_q_norm": Special(sources=("self_attn.q_layernorm.norms.{e}",)),
        "attn_k_norm": Special(sources=("self_attn.k_layernorm.norms.{e}",)),
    }


def observed(names: Set[str]) -> Mapping[str, bool]:
    """Old configurations do not say whether blocks are parallel; such layers have no second norm."""
    return {"use_parallel_residual": "layers.0.post_attention_layernorm.weight" not in names}


FAMILY = derived_family("stablelm", metadata, special, observed=observed)
CHECKPOINTS = ("StableLmForCausalLM", "StableLMEpochForCausalLM")
