"""MiniCPM 3 (Hu et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.latent import joined_heads
from chaski.convert.longrope import LONGROPE, trained_length
from chaski.convert.metadata import Metadata, common_metadata, rope
from chaski.errors import UnsupportedError

_NUMBERS = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
"""The settings that readers of the file assume, because it has no keys for them."""


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    for name, value in _NUMBERS.items():
        if config.get(name, float, value) != value:
            raise UnsupportedError(f"{config.path}: {name} must be {value} to be converted for minicpm3")
    turned = config.get("qk_rope_head_dim", int)
    if config.get("v_head_dim", int, 0) not in (0, _value(config)):
        raise UnsupportedError(f"{config.path}: v_head_dim must be {_value(config)} to be converted")
    rope(config).expect("rope_type", "default", *LONGROPE)
    if trained_length(config) != config.get("max_position_embeddings", int):
        raise UnsupportedError(
            f"{config.path}: longrope for a context beyond the trained one cannot be converted"
        )
    entries = common_metadata(config, rope_tensors=LONGROPE)
    if (base := entries.pop("rope.freq_base", 10000.0)) != 10000.0:
        raise UnsupportedError(
            f"{config.path}: rope_theta is {base}; only 10000.0 can be converted for minicpm3"
        )
    entries.pop("attention.value_length", None)
    return entries | {
        "attention.key_length": config.get("qk_nope_head_dim", int) + turned,
        "attention.kv_lora_rank": config.get("kv_lora_rank", int),
        "attention.q_lora_rank": config.get("q_lora_rank", int),
        "rope.dimension_count": turned,
        "vocab_size": config.get("vocab_size", int),
    }


def _value(config: Config) -> int:
    return config.get("hidden_size", int) // config.get("num_attention_heads", int)


FAMILY = derived_family("minicpm3", metadata, joined_heads)
CHECKPOINTS = ("MiniCPM3ForCausalLM",)
