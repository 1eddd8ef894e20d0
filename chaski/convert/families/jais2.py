"""Jais 2 (Inception 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, head_size


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "relu2")
    return common_metadata(config) | {"rope.dimension_count": head_size(config)}


FAMILY = derived_family("jais2", metadata)
CHECKPOINTS = ("Jais2ForCausalLM",)
