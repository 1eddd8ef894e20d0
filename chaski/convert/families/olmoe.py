"""OLMoE (Muennighoff et al. 2024)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("clip_qkv", None)
    config.expect("norm_topk_prob", False)
    return common_metadata(config) | expert_metadata(config)


FAMILY = derived_family("olmoe", metadata)
CHECKPOINTS = ("OlmoeForCausalLM",)
