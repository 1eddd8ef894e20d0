"""Spark X2.5 (iFlytek 2026)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope

_SPECIAL = {
    "attn_qkv": Special(sources=("self_attn.q_k_v_proj",)),
    "attn_gate": Special(sources=("self_attn.g_proj",)),
}


def metadata(config: Config) -> Metadata:
    config.require("hidden_act", "gelu")
    config.require("gate_attn_act_mode", "sigmoid")
    config.require("headwise_attn_output_gate", True)
    near = rope(config, "sliding_attention")
    near.expect("rope_type", "default")
    rope(config).expect("rope_type", "default")
    kinds = config.list("layer_types", str)
    return common_metadata(config) | {
        "attention.sliding_window": config.get("sliding_window", int),
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "context_length": config.get("max_position_embeddings", int),
        "rope.dimension_count": _rotated(config, "full_attention"),
        "rope.dimension_count_swa": _rotated(config, "sliding_attention"),
        "rope.freq_base_swa": near.get("rope_theta", float),
        "vocab_size": config.get("vocab_size", int),
    }


def _rotated(config: Config, kind: str) -> int:
    return int(head_size(config) * rope(config, kind).get("partial_rotary_factor", float, 1.0))


def special(config: Config) -> Mapping[str, Special]:
    return _SPECIAL


FAMILY = derived_family("spark2_5", metadata, special)
CHECKPOINTS = ("Spark2_5ForCausalLM",)
