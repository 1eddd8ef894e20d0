"""Jamba (Lieber et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata
from chaski.convert.state_space import DECAYS


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    hidden, heads = config.get("hidden_size", int), config.get("num_key_value_heads", int)
    period, offset = config.count("attn_layer_period"), config.get("attn_layer_offset", int)
    layers = config.count("num_hidden_layers")
    rank = config.values.get("mamba_dt_rank")
    entries: Metadata = {
        "block_count": layers,
        "context_length": config.get("max_position_embeddings", int),
        "embedding_length": hidden,
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": config.get("num_attention_heads", int),
        "attention.head_count_kv": [heads if layer % period == offset else 0 for layer in range(layers)],
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float, 1e-6),
        "ssm.conv_kernel": config.get("mamba_d_conv", int, 4),
        "ssm.inner_size": config.get("mamba_expand", int, 2) * hidden,
        "ssm.state_size": config.get("mamba_d_state", int, 16),
        "ssm.time_step_rank": -(hidden // -16) if rank == "auto" else config.get("mamba_dt_rank", int),
    }
    return entries | expert_metadata(config)


def special(config: Config) -> Specials:
    norms = {f"ssm_{name}_norm": Special(sources=(f"mamba.{name}_layernorm",)) for name in ("dt", "b", "c")}
    return {"ssm_a": DECAYS, **norms}


FAMILY = derived_family("jamba", metadata, special)
CHECKPOINTS = ("JambaForCausalLM",)
