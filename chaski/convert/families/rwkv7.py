"""RWKV 7 (Peng et al. 2025), in the form of flash-linear-attention."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata

_ANY_LENGTH = 1 << 20  # RWKV has no longest context
_RANKS: Mapping[str, tuple[str, float, float]] = {
    "decay": ("decay_low_rank_dim", 0.5, 1.8),
    "iclr": ("a_low_rank_dim", 0.5, 1.8),
    "value_residual_mix": ("v_low_rank_dim", 0.5, 1.3),
    "gate": ("gate_low_rank_dim", 0.8, 0.6),
}
"""The names of ranks in configurations. By default they are multiples of 32 near factor · size^exponent."""

_SOURCES = {
    "attn_norm_2": "ffn_norm",
    "token_embd_norm": "layers.0.pre_norm",
    "time_mix_k_k": "attn.k_k",
    "time_mix_k_a": "attn.k_a",
    "time_mix_receptance": "attn.r_proj",
    "time_mix_key": "attn.k_proj",
    "time_mix_value": "attn.v_proj",
    "time_mix_output": "attn.o_proj",
    "time_mix_ln": "attn.g_norm",
    "channel_mix_lerp_k": "ffn.x_k",
    "channel_mix_key": "ffn.key",
    "channel_mix_value": "ffn.value",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "sqrelu")
    config.expect("attn", None)
    config.expect("norm_first", True)
    hidden = config.get("hidden_size", int)
    return {
        "context_length": _ANY_LENGTH,
        "embedding_length": hidden,
        "block_count": config.get("num_hidden_layers", int),
        "attention.head_count": 0,
        "attention.layer_norm_epsilon": config.get("norm_eps", float, 1e-5),
        "feed_forward_length": config.get("intermediate_size", int, 4 * hidden),
        "wkv.head_size": config.get("head_dim", int, 64),
        **{f"attention.{name}_lora_rank": _rank(config, name) for name in _RANKS},
    }


def _rank(config: Config, name: str) -> int:
    key, exponent, factor = _RANKS[name]
    usual = max(1, round(config.get("hidden_size", int) ** exponent * factor / 32)) * 32
    return config.get(key, int, usual)


def special(config: Config) -> Specials:
    size = config.get("head_dim", int, 64)
    specials = {name: Special(sources=(source,)) for name, source in _SOURCES.items()}
    for name in "wavg":
        # The first layer has no matrices for values of the first layer; files have others in their place.
        kinds = "va" if name == "v" else name
        for part, source in (("0", "2.bias"), ("1", "0.weight"), ("2", "2.weight")):
            sources = tuple(f"attn.{kind}_lora.lora.{source}" for kind in kinds)
            specials[f"time_mix_{name}{part}.weight"] = Special(sources=sources)
    return {
        **specials,
        "time_mix_lerp_fused": Special(sources=("attn.x_{e}",), parts=tuple("rwkvag")),
        "time_mix_r_k": Special(sources=("attn.r_k",), source_shape=lambda shape: (shape[0] // size, size)),
    }


FAMILY = derived_family("rwkv7", metadata, special)
CHECKPOINTS = ("RWKV7ForCausalLM", "Rwkv7ForCausalLM")
