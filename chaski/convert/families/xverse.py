"""XVERSE (XVERSE Technology 2023)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.metadata import Metadata, common_metadata, head_size


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return common_metadata(config) | {"rope.dimension_count": head_size(config)}


FAMILY = derived_family("xverse", metadata, rotated_heads)
CHECKPOINTS = ("XverseForCausalLM",)
