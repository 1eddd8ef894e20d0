"""Nemotron 4 and Minitron (Parmar et al. 2024): norms multiply by 1 + weight, and GGUF stores the sum."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata, common_metadata, num_rotated, rope

_ROTATED = 0.5


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "relu2")
    rope(config).expect("rope_type", "default", "linear")
    return (
        {"rope.scaling.type": "none"}
        | common_metadata(config)
        | {
            "attention.layer_norm_epsilon": config.get("norm_eps", float),
            "rope.dimension_count": num_rotated(config, _ROTATED),
            "vocab_size": config.get("vocab_size", int),
        }
    )


def special(config: Config) -> Specials:
    return dict.fromkeys(("attn_norm.weight", "ffn_norm.weight", "output_norm.weight"), Special(shift=1))


FAMILY = derived_family("nemotron", metadata, special)
CHECKPOINTS = ("NemotronForCausalLM",)
