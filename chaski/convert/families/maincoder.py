"""Maincoder (Maincode 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, head_size


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("use_qk_norm", True)
    entries = common_metadata(config)
    return entries | {"rope.dimension_count": head_size(config)} if "head_dim" in config else entries


FAMILY = derived_family("maincoder", metadata)
CHECKPOINTS = ("MaincoderForCausalLM",)
