"""PLaMo 3 (Preferred Networks 2025): norms add a number to their weights, and GGUF stores the sum."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata, common_metadata, rope

__all__ = ["CHECKPOINTS", "FAMILY", "special"]

_SHIFTS = {
    "attn_norm": 1.0,
    "attn_q_norm": 1.0,
    "attn_k_norm": 1.0,
    "post_attention_norm": 1 / 5,
    "ffn_norm": 1.0,
    "post_ffw_norm": 1 / 5**1.5,
    "output_norm": 1.0,
}
_SOURCES = {
    "attn_norm": "pre_mixer_norm",
    "attn_q_norm": "mixer.q_norm",
    "attn_k_norm": "mixer.k_norm",
    "post_attention_norm": "post_mixer_norm.weight",
    "ffn_norm": "pre_mlp_norm",
    "post_ffw_norm": "post_mlp_norm.weight",
    "attn_qkv": "mixer.qkv_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mlp.gate_up_proj",
}


def metadata(config: Config) -> Metadata:
    config.expect("rope_scaling_factor", 1, 1.0)
    rope(config).expect("rope_type", "default")
    entries = common_metadata(config) | {"vocab_size": config.get("vocab_size", int)}
    if "rope_local_theta" in config:
        entries["rope.freq_base_swa"] = config.get("rope_local_theta", float)
    if "sliding_window" not in config:
        return entries
    return entries | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.sliding_window": config.get("sliding_window", int),
        "attention.sliding_window_pattern": config.count("sliding_window_pattern"),
    }


def special(config: Config) -> Specials:
    names = _SHIFTS.keys() | _SOURCES.keys()
    return {
        name: Special(sources=(_SOURCES[name],) if name in _SOURCES else (), shift=_SHIFTS.get(name, 0.0))
        for name in names
    }


FAMILY = derived_family("plamo3", metadata, special, synonyms={"window_size": "sliding_window"})
CHECKPOINTS = ("PLaMo3ForCausalLM", "Plamo3ForCausalLM")
