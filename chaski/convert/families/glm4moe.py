"""GLM 4.5 to 4.7 (Z.ai 2025)."""

from __future__ import annotations

from chaski.convert.blocks import block_metadata
from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import full_expert_metadata, rotated
from chaski.convert.metadata import Metadata, common_metadata
from chaski.ml.moe_ops import Gating


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return (
        common_metadata(config)
        | full_expert_metadata(config)
        | {
            "expert_gating_func": Gating.SIGMOID + 1,
            "rope.dimension_count": rotated(config, 0.5),
        }
        | block_metadata(config)
    )


FAMILY = derived_family("glm4moe", metadata)
CHECKPOINTS = ("Glm4MoeForCausalLM", "SolarOpenForCausalLM")
