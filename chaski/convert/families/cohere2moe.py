"""Command A with experts (Cohere 2026)."""

from __future__ import annotations

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope, windows
from chaski.errors import UnsupportedError

_PERIOD = 4


def metadata(config: Config) -> Metadata:
    layers, size = config.count("num_hidden_layers"), config.get("intermediate_size", int)
    kinds = config.list("mlp_layer_types", str)
    dense = kinds.index("sparse") if "sparse" in kinds else config.get("first_k_dense_replace", int, 0)
    config.expect("hidden_act", "silu")
    rope(config).expect("rope_type", "default")
    config.expect("mlp_layer_types", ["dense"] * dense + ["sparse"] * (layers - dense))
    config.expect("prefix_dense_sliding_window_pattern", 1)
    shared = config.get("num_shared_experts", int, 0)
    if shared and config.get("shared_expert_combination_strategy", str, "average") != "average":
        raise UnsupportedError(f"{config.path}: shared experts that are not averaged cannot be converted")
    return (
        _sizes(config)
        | expert_metadata(config, "expert_weights_norm")
        | windows(config, _PERIOD)
        | {
            "expert_feed_forward_length": size,
            "leading_dense_block_count": dense,
            "logit_scale": config.get("logit_scale", float),
            "rope.dimension_count": head_size(config),
            "rope.scaling.type": "none",
            "vocab_size": config.get("vocab_size", int),
        }
        | (
            {"expert_shared_count": shared, "expert_shared_feed_forward_length": size * shared}
            if shared
            else {}
        )
        | block_metadata(config)
    )


def _sizes(config: Config) -> Metadata:
    """Return the common keys, with the epsilon of one kind of norm or of both."""
    rms = config.get("rms_norm_eps", float, None)
    names = {"rms_norm_eps": 0.0 if rms is None else rms}
    entries = common_metadata(Config(config.path, names).over(config)) | {
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", float, 1e-5),
        "context_length": config.get("max_position_embeddings", int),
        "feed_forward_length": config.get(
            "prefix_dense_intermediate_size", int, config.get("intermediate_size", int)
        ),
    }
    if rms is None:
        del entries["attention.layer_norm_rms_epsilon"]
    return entries


FAMILY = derived_family("cohere2moe", metadata, defaults={"tie_word_embeddings": True})
CHECKPOINTS = ("Cohere2MoeForCausalLM",)
