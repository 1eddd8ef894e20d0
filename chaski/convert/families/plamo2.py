"""PLaMo 2 (Preferred Networks 2025): norms add a number to their weights, and GGUF stores the sum."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.families import plamo3
from chaski.convert.metadata import Metadata
from chaski.convert.state_space import DECAYS

_SOURCES = {
    "attn_q_norm": "mixer.q_weight",
    "attn_k_norm": "mixer.k_weight",
    "ssm_b_norm": "mixer.B_norm_weight",
    "ssm_c_norm": "mixer.C_norm_weight",
    "ssm_dt_norm": "mixer.dt_norm_weight",
    "ssm_dt.weight": "mixer.dt_proj",
    "ssm_dt.bias": "mixer.dt_bias",
    "ssm_x": "mixer.bcdt_proj",
}


def metadata(config: Config) -> Metadata:
    config.expect("mamba_enabled", True)
    layers, step = config.count("num_hidden_layers"), config.count("mamba_step", 2)
    attends = [layer % step == step // 2 for layer in range(layers)]
    if layers <= step // 2:
        attends[-1] = True
    heads, kv_heads = config.get("num_attention_heads", int), config.get("num_key_value_heads", int)
    size, mamba_heads = config.get("hidden_size_per_head", int), config.get("mamba_num_heads", int)
    entries: Metadata = {
        "vocab_size": config.get("vocab_size", int),
        "block_count": layers,
        "context_length": config.get("max_position_embeddings", int, 2048),
        "embedding_length": config.get("hidden_size", int),
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": [heads if each else 0 for each in attends],
        "attention.head_count_kv": [kv_heads if each else 0 for each in attends],
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float, 1e-6),
        "rope.freq_base": config.get("rope_theta", float, 10000.0),
        "ssm.state_size": config.get("mamba_d_state", int, 64),
        "ssm.conv_kernel": config.get("mamba_d_conv", int, 4),
        "ssm.time_step_rank": mamba_heads,
        "ssm.inner_size": mamba_heads * size,
        "ssm.group_count": 0,
    }
    return entries | _window(config, attends)


def _window(config: Config, attends: list[bool]) -> Metadata:
    """Return the key of the window of attention. Raises UnsupportedError if only some layers have it."""
    everything = config.list("full_attention_idx", int)
    if "attention_window_size" not in config:
        return {}
    attending = [index for index, each in enumerate(attends) if each]
    if everything:
        config.expect("full_attention_idx", attending)
        return {}
    return {"attention.sliding_window": config.get("attention_window_size", int)}


def special(config: Config) -> Specials:
    specials = {name: Special(sources=(source,)) for name, source in _SOURCES.items()}
    return {**plamo3.special(config), **specials, "ssm_a": DECAYS}


FAMILY = derived_family("plamo2", metadata, special)
CHECKPOINTS = ("Plamo2ForCausalLM", "PLaMo2ForCausalLM")
