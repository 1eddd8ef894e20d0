"""MiMo V2 (Xiaomi 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.blocks import block_metadata, num_blocks
from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope, windows
from chaski.ml.moe_ops import Gating

_PERIOD = 6
_DOUBLED = 2


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("topk_method", "noaux_tc")
    config.expect("norm_topk_prob", True)
    config.expect("routed_scaling_factor", 1.0)
    config.expect("add_full_attention_sink_bias", False)
    near_heads = config.get("swa_num_key_value_heads", int, _DOUBLED * config.get("num_key_value_heads", int))
    names = {"rms_norm_eps": config.get("layernorm_epsilon", float, config.get("rms_norm_eps", float, 1e-5))}
    types = {"layer_types": _kinds(config)}
    entries = common_metadata(Config(config.path, names).over(config))
    entries |= windows(Config(config.path, types).over(config), _PERIOD)
    share = config.get("partial_rotary_factor", float, 0.334)
    near = rope(config, "sliding_attention")
    heads = config.get("num_key_value_heads", int)
    return (
        entries
        | block_metadata(config)
        | {"expert_gating_func": Gating.SIGMOID + 1}
        | expert_metadata(config, "expert_feed_forward_length")
        | {
            "context_length": config.get("max_position_embeddings", int),
            "attention.head_count_kv": [
                near_heads if kind == "sliding_attention" else heads for kind in _kinds(config)
            ],
            "attention.value_length": config.get("v_head_dim", int),
            "attention.value_scale": config.get("attention_value_scale", float, 1.0),
            "rope.dimension_count": int(
                head_size(config) * rope(config).get("partial_rotary_factor", float, share)
            ),
            "rope.freq_base_swa": config.get("swa_rope_theta", float, near.get("rope_theta", float, 10000.0)),
        }
    )


def _kinds(config: Config) -> list[str]:
    """Return the kind of each layer and block, from old or new configurations."""
    blocks = ["sliding_attention"] * num_blocks(config)
    if "hybrid_layer_pattern" not in config:
        return [*config.list("layer_types", str), *blocks]
    kinds = ["full_attention", "sliding_attention"]
    return [*(kinds[each] for each in config.list("hybrid_layer_pattern", int)), *blocks]


def special(config: Config) -> Mapping[str, Special]:
    return {"attn_sinks": Special(sources=("self_attn.attention_sink_bias", "self_attn.sinks"))}


FAMILY = derived_family("mimo2", metadata, special, defaults={"num_nextn_predict_layers": 3})
CHECKPOINTS = ("MiMoV2FlashForCausalLM",)
