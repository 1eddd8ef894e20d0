"""LLaDA MoE (Zhu et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.denoising import BIDIRECTIONAL, unshifted
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata

_MASK = 156895


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("qk_layernorm", True)
    config.expect("norm_topk_prob", False)
    return common_metadata(config) | expert_metadata(config, "expert_feed_forward_length") | BIDIRECTIONAL


def roles(config: Config) -> Mapping[str, int]:
    return {"mask": config.get("mask_token_id", int, _MASK)}


FAMILY = derived_family(
    "llada-moe",
    metadata,
    synonyms={"expert_intermediate_size": "moe_intermediate_size"},
    roles=roles,
    measured=unshifted,
)
CHECKPOINTS = ("LLaDAMoEModel", "LLaDAMoEModelLM")
