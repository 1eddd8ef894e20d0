"""Kimi K3 (Kimi Team 2026), text."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.families import kimi_linear
from chaski.convert.family import VISION_TENSORS, Family
from chaski.convert.latent import latent_metadata
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.tensors import Mapped, Planned, Product
from chaski.ml.moe_ops import Gating

_SCORES = {
    "attn_res_score": "self_attention_res",
    "ffn_res_score": "mlp_res",
    "output_res_score": "output_attn_res",
}
"""The scores of states, which are products of a norm's weights and a matrix of one row."""

_MOE = "block_sparse_moe"


def metadata(config: Config) -> Metadata:
    config.require("hidden_act", "situ")
    config.expect("moe_layer_freq", 1)
    config.expect("mla_use_nope", True)
    config.expect("moe_router_activation_func", "sigmoid")
    heads, delta = config.get("num_attention_heads", int), config.part("linear_attn_config")
    delta.expect("num_heads", heads)
    layers, attending = config.count("num_hidden_layers"), delta.list("full_attn_layers", int)
    return {
        **common_metadata(config),
        **latent_metadata(config),
        "attention.head_count_kv": [int(layer in attending) for layer in range(1, layers + 1)],
        **expert_metadata(
            config,
            "expert_feed_forward_length",
            "expert_shared_count",
            "expert_weights_scale",
            "leading_dense_block_count",
        ),
        "activation.situ_beta": config.get("activation_situ_beta", float),
        "activation.situ_linear_beta": config.get("activation_situ_linear_beta", float),
        "attn_res.block_size": config.count("attn_res_block_size"),
        "expert_gating_func": Gating.SIGMOID + 1,
        "expert_latent_length": config.get("routed_expert_hidden_size", int),
        "expert_weights_norm": config.get("moe_renormalize", bool),
        "kda.gate_lower_bound": delta.get("gate_lower_bound", float),
        "kda.head_dim": delta.get("head_dim", int),
        "ssm.conv_kernel": delta.get("short_conv_kernel_size", int),
        "vocab_size": config.get("vocab_size", int),
    }


def special(config: Config) -> Specials:
    gates = Special(sources=("self_attn.g_proj",))
    routed = {
        f"ffn_routed_{name}": Special(sources=(f"{_MOE}.routed_expert_{source}",))
        for name, source in (("down", "down_proj"), ("up", "up_proj"), ("norm", "norm"))
    }
    scores = {name: Special(sources=(f"{source}_norm",)) for name, source in _SCORES.items()}
    return {**kimi_linear.special(config), **routed, **scores, "attn_gate": gates, "ssm_g": gates}


_DERIVED = derived_family("kimi-k3", metadata, special)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    for planned in _DERIVED.tensors(config, names):
        if isinstance(planned, Mapped) and planned.name.endswith("res_score.weight"):
            (source,) = planned.names
            yield Product(planned, source.replace("_norm.", "_proj."))
        else:
            yield planned


_UNUSED = (*VISION_TENSORS, r"mm_projector\..*")
FAMILY = Family("kimi-k3", metadata, tensors, _UNUSED, synonyms=kimi_linear.FAMILY.synonyms)
CHECKPOINTS = ("KimiK3ForConditionalGeneration",)
