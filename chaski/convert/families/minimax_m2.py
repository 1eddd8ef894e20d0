"""MiniMax M2 (MiniMax 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope
from chaski.ml.moe_ops import Gating


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("scoring_func", "sigmoid")
    config.expect("use_qk_norm", True)
    config.expect("qk_norm_type", "per_layer")
    share = rope(config).get("partial_rotary_factor", float, 1.0)
    return (
        common_metadata(config)
        | {"expert_gating_func": Gating.SIGMOID + 1}
        | expert_metadata(config)
        | {
            "expert_feed_forward_length": config.get("intermediate_size", int),
            "rope.dimension_count": config.get("rotary_dim", int, int(head_size(config) * share)),
        }
    )


FAMILY = derived_family("minimax-m2", metadata)
CHECKPOINTS = ("MiniMaxM2ForCausalLM",)
