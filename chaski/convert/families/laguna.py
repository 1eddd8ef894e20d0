"""Laguna (Poolside 2026)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope
from chaski.ml.moe_ops import Gating

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    layers = config.count("num_hidden_layers")
    kinds = config.list("mlp_layer_types", str)
    dense = kinds.index("sparse") if "sparse" in kinds else layers
    config.expect("hidden_act", "silu")
    config.expect("mlp_layer_types", ["dense"] * dense + ["sparse"] * (layers - dense))
    config.expect("moe_router_logit_softcapping", 0.0)
    config.expect("moe_apply_router_weight_on_input", False)
    heads = config.list("num_attention_heads_per_layer", int)
    return (
        common_metadata(config)
        | expert_metadata(config, "expert_feed_forward_length")
        | {
            "attention.head_count": heads or [config.get("num_attention_heads", int)] * layers,
            "context_length": config.get("max_position_embeddings", int),
            "expert_gating_func": Gating.SIGMOID + 1,
            "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size", int),
            "expert_weights_norm": True,
            "expert_weights_scale": config.get("moe_routed_scaling_factor", float, 1.0),
            "leading_dense_block_count": dense,
            "rope.dimension_count": _rotated(config, "full_attention"),
            "vocab_size": config.get("vocab_size", int),
        }
        | _windows(config, layers)
    )


def _windows(config: Config, layers: int) -> Metadata:
    window = config.get("sliding_window", int, 0)
    if not window:
        config.expect("layer_types", ["full_attention"] * layers)
        return {}
    usual = ["sliding_attention" if layer % _PERIOD else "full_attention" for layer in range(layers)]
    config.expect("layer_types", usual)
    near = rope(config, "sliding_attention")
    near.expect("rope_type", "default")
    return {
        "attention.sliding_window": window,
        "rope.dimension_count_swa": _rotated(config, "sliding_attention"),
        "rope.freq_base_swa": near.get("rope_theta", float),
    }


def _rotated(config: Config, kind: str) -> int:
    return int(head_size(config) * rope(config, kind).get("partial_rotary_factor", float, 1.0))


def special(config: Config) -> Mapping[str, Special]:
    gating = config.values.get("gating", True)
    is_per_head = gating is True or str(gating).replace("_", "-") == "per-head"
    return {
        "attn_gate": Special(sources=("self_attn.g_proj",), shown=() if is_per_head else (0,)),
        "exp_probs_b": Special(sources=("mlp.experts.e_score_correction_bias",)),
    }


FAMILY = derived_family("laguna", metadata, special)
CHECKPOINTS = ("LagunaForCausalLM",)
