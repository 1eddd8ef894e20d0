"""Kimi Linear (Kimi Team 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.latent import latent_metadata, split_heads
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.state_space import DECAYS
from chaski.ml.moe_ops import Gating

_SOURCES = {
    "ssm_a": "A_log",
    "ssm_beta": "b_proj",
    "ssm_conv1d_q": "q_conv1d",
    "ssm_conv1d_k": "k_conv1d",
    "ssm_conv1d_v": "v_conv1d",
    "ssm_dt": "dt_bias",
    "ssm_f_a": "f_a_proj",
    "ssm_f_b": "f_b_proj",
    "ssm_g_a": "g_a_proj",
    "ssm_g_b": "g_b_proj",
    "ssm_norm": "o_norm",
}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("moe_layer_freq", 1)
    config.expect("moe_renormalize", True)
    config.expect("mla_use_nope", True)
    config.expect("moe_router_activation_func", "sigmoid")
    heads, delta = config.get("num_attention_heads", int), config.part("linear_attn_config")
    delta.require("num_heads", heads)
    layers, attending = config.count("num_hidden_layers"), delta.list("full_attn_layers", int)
    latent, groups = latent_metadata(config), config.get("num_expert_group", int, 1)
    return {
        **common_metadata(config),
        **latent,
        "attention.value_length": config.get("head_dim", int, latent["attention.value_length"]),
        "attention.head_count_kv": [int(layer in attending) for layer in range(1, layers + 1)],
        **expert_metadata(
            config,
            "expert_feed_forward_length",
            "expert_shared_count",
            "expert_weights_scale",
            "leading_dense_block_count",
        ),
        **({"expert_group_count": groups} if groups > 1 else {}),
        "expert_gating_func": Gating.SIGMOID + 1,
        "kda.head_dim": delta.get("head_dim", int),
        "ssm.conv_kernel": delta.get("short_conv_kernel_size", int),
        "vocab_size": config.get("vocab_size", int),
    }


def special(config: Config) -> Specials:
    specials = {name: Special(sources=(f"self_attn.{source}",)) for name, source in _SOURCES.items()}
    for name in ("ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"):
        specials[name] = Special(
            sources=specials[name].sources, source_shape=lambda shape: (shape[1], 1, shape[3])
        )
    decays = Special(sources=specials["ssm_a"].sources, function=DECAYS.function)
    shared = {
        f"ffn_{name}_shexp": Special(sources=(f"block_sparse_moe.shared_experts.{name}_proj",))
        for name in ("gate", "up", "down")
    }
    return {**split_heads(config), **specials, "ssm_a": decays, **shared}


FAMILY = derived_family(
    "kimi-linear", metadata, special, synonyms={"model_max_length": "max_position_embeddings"}
)
CHECKPOINTS = ("KimiLinearForCausalLM", "KimiLinearModel")
