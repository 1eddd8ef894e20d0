"""RND1 (Radical Numerics 2025): a Qwen 3 with experts."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.denoising import BIDIRECTIONAL, mask_role
from chaski.convert.derived import derived_family
from chaski.convert.experts import expert_metadata
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("norm_topk_prob", True)
    config.expect("decoder_sparse_step", 1)
    config.expect("mlp_only_layers", [])
    return common_metadata(config) | expert_metadata(config, "expert_feed_forward_length") | BIDIRECTIONAL


FAMILY = derived_family("rnd1", metadata, roles=mask_role)
CHECKPOINTS = ("RND1",)
