"""LFM 2 with experts (Liquid AI 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata
from chaski.ml.moe_ops import Gating

_CONVOLUTION = ("conv", "in_proj", "out_proj")


def metadata(config: Config) -> Metadata:
    config.expect("conv_bias", False)
    config.expect("norm_topk_prob", True)
    config.expect("routed_scaling_factor", 1.0)
    names = {"rms_norm_eps": config.get("norm_eps", float)}
    heads, kinds = config.get("num_key_value_heads", int), config.list("layer_types", str)
    return (
        common_metadata(Config(config.path, names).over(config))
        | expert_metadata(config, "expert_feed_forward_length", "leading_dense_block_count")
        | {
            "expert_gating_func": Gating.SIGMOID + 1,
            "vocab_size": config.get("vocab_size", int),
            "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in kinds],
            "shortconv.l_cache": config.get("conv_L_cache", int),
        }
    )


def special(config: Config) -> Mapping[str, Special]:
    return {
        **{f"shortconv.{name}": Special(sources=(f"conv.{name}",)) for name in _CONVOLUTION},
        "shortconv.conv": Special(
            sources=("conv.conv",), source_shape=lambda shape: (shape[0], 1, *shape[1:])
        ),
    }


FAMILY = derived_family("lfm2moe", metadata, special, pre_tokenizers={"llama-bpe": "lfm2"})
CHECKPOINTS = ("Lfm2MoeForCausalLM",)
