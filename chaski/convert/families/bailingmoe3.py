"""Ling 3 (Ling Team 2026), as published and in transformers' form."""

from __future__ import annotations

import numpy as np

from chaski.convert.blocks import block_metadata, num_blocks
from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.latent import latent_metadata, split_heads
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.tensors import F32

_SOURCES = {
    "attn_gate": "g_proj",
    "attn_k": "k_proj",
    "attn_k_b": "kv_b_proj",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_a_norm": "kv_a_layernorm",
    "attn_output": "dense o_proj",
    "attn_q": "q_proj",
    "attn_q_a": "q_a_proj",
    "attn_q_a_norm": "q_a_layernorm",
    "attn_q_b": "q_b_proj",
    "attn_v": "v_proj",
    "attn_v_b": "kv_b_proj",
    "ssm_a": "A_log",
    "ssm_beta": "b_proj",
    "ssm_conv1d_k": "k_conv1d",
    "ssm_conv1d_q": "q_conv1d",
    "ssm_conv1d_v": "v_conv1d",
    "ssm_dt": "dt_bias",
    "ssm_f_a": "f_proj",
    "ssm_g_a": "g_proj",
    "ssm_norm": "o_norm",
}
_LIMITS = {
    "swiglu_clamp_exp": "expert_swiglu_limit_list",
    "swiglu_clamp_shexp": "share_expert_swiglu_limit_list",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("kda_safe_gate", True)
    config.expect("no_kda_lora", True)
    config.expect("gated_attention_proj_granularity_type", "head_wise")
    size, shared = config.get("moe_intermediate_size", int), config.get("num_shared_experts", int, 1)
    return {
        **common_metadata(config),
        **latent_metadata(config),
        "attention.value_length": config.get("head_dim", int),
        "attention.head_count_kv": [*map(int, _attending(config)), *[1] * num_blocks(config)],
        **expert_metadata(
            config,
            "expert_feed_forward_length",
            "expert_weights_norm",
            "expert_weights_scale",
            "leading_dense_block_count",
        ),
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": config.get(
            "moe_shared_expert_intermediate_size", int, size * shared
        ),
        "kda.head_dim": config.get("linear_head_dim", int, config.get("head_dim", int)),
        "kda.gate_lower_bound": config.get("kda_lower_bound", float, -5.0),
        "kda.safe_gate": True,
        "ssm.conv_kernel": config.get("short_conv_kernel_size", int, 4),
        "vocab_size": config.get("vocab_size", int),
        **_limits(config),
        **block_metadata(config),
    }


def _attending(config: Config) -> list[bool]:
    """Return for each layer whether it attends: the last of each group, and all after the whole groups."""
    layers, group = config.count("num_hidden_layers"), config.get("layer_group_size", int, 6)
    return [not (layer + 1) % group or layer >= layers // group * group for layer in range(layers)]


def _limits(config: Config) -> Metadata:
    """Return the limits of activations for each layer and block, 0 for none, as far as they are stated."""
    layers = config.count("num_hidden_layers") + num_blocks(config)
    entries: Metadata = {}
    for key, name in _LIMITS.items():
        if config.values.get(name) is not None:
            stated = [float(limit or 0.0) for limit in config.list(name)[:layers]]
            entries[key] = stated + [0.0] * (layers - len(stated))
    return entries


def _decays(log: F32) -> F32:
    y: F32 = np.exp(log.astype(np.float64)).astype(np.float32)
    return y


def special(config: Config) -> Specials:
    heads = split_heads(config)
    found = dict[str, Special]()
    for name, listed in _SOURCES.items():
        sources = tuple(f"attention.{source}" for source in listed.split())
        usual = heads.get(name, Special())
        found[name] = Special(
            sources=sources,
            is_stack=usual.is_stack,
            arrange=usual.arrange,
            source_shape=usual.source_shape,
        )
    for name in ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"):
        found[name] = Special(sources=found[name].sources, source_shape=lambda shape: (shape[1], 1, shape[3]))
    found["nextn.shared_head_norm"] = Special(sources=("final_layernorm",))
    found["ssm_a"] = Special(
        sources=found["ssm_a"].sources, function=_decays, source_shape=lambda shape: shape[:1]
    )
    return found


_SYNONYMS = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
}  # transformers' names of settings
FAMILY = derived_family("bailingmoe3", metadata, special, synonyms=_SYNONYMS)
CHECKPOINTS = ("BailingMoeV3ForCausalLM", "BailingHybridForCausalLM")
