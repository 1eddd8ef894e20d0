"""Maple (DeepGrove 2026)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata, rotated
from chaski.convert.metadata import Metadata, common_metadata, windows

_PERIOD = 4
_LIMIT = 7.0  # of the published code


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("num_shared_experts", 0)
    config.expect("norm_topk_prob", True)
    config.require("nope_on_global_attention", True)
    return (
        common_metadata(config)
        | expert_metadata(config, "expert_feed_forward_length")
        | windows(config, _PERIOD)
        | {
            "context_length": config.get("max_position_embeddings", int),
            "rope.dimension_count": rotated(config),
            "swiglu_clamp_exp": [_LIMIT] * config.count("num_hidden_layers"),
            "vocab_size": config.get("vocab_size", int),
        }
    )


FAMILY = derived_family("maple", metadata)
CHECKPOINTS = ("MapleForCausalLM",)
