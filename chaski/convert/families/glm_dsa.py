"""GLM 5 to 5.2 (Z.ai 2026)."""

from __future__ import annotations

from chaski.convert.blocks import blocks_after
from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import deepseek32
from chaski.convert.metadata import Metadata, rope


def metadata(config: Config) -> Metadata:
    rope(config).expect("partial_rotary_factor", 1.0)
    entries = deepseek32.metadata(config)
    if "indexer_types" in config:
        kinds = config.list("indexer_types", str)
        entries["attention.indexer.types"] = [kind == "full" for kind in kinds]
    return entries


FAMILY = derived_family("glm-dsa", metadata, deepseek32.special, left_out=blocks_after)
CHECKPOINTS = ("GlmMoeDsaForCausalLM",)
