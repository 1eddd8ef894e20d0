"""Grok 2 (xAI 2025), from checkpoints that are not split by ranks."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size

_MOE = "block_sparse_moe"
_SOURCES = {
    "attn_norm": "pre_attn_norm",
    "attn_output_norm": "post_attn_norm",
    "ffn_norm": "pre_moe_norm",
    "post_ffw_norm": "post_moe_norm",
    "ffn_gate_inp": f"{_MOE}.gate",
    "ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
    "ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
    "ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
}


def metadata(config: Config) -> Metadata:
    config.expect("rope_type", "default")
    config.expect("attn_temperature_len", 0)
    final = config.get("final_logit_softcapping", float, 0.0)
    entries = common_metadata(config) | expert_metadata(config, "expert_feed_forward_length")
    entries |= {
        "attn_logit_softcapping": config.get("attn_logit_softcapping", float, 30.0),
        "router_logit_softcapping": config.get("router_logit_softcapping", float, 30.0),
        "attention.output_scale": config.get("attn_output_multiplier", float, head_size(config) ** -0.5),
        "embedding_scale": config.get("embedding_multiplier_scale", float),
        "logit_scale": config.get("output_multiplier_scale", float),
    }
    return entries | ({"final_logit_softcapping": final} if final else {})


def special(config: Config) -> Mapping[str, Special]:
    return {name: Special(sources=(source,)) for name, source in _SOURCES.items()}


FAMILY = derived_family("grok", metadata, special)
CHECKPOINTS = ("Grok1ForCausalLM",)
