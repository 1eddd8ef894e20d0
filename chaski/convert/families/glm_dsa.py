"""GLM 5 to 5.2 (Z.ai 2026)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import deepseek32
from chaski.convert.metadata import Metadata, rope


def metadata(config: Config) -> Metadata:
    rope(config).expect("partial_rotary_factor", 1.0)
    entries = deepseek32.metadata(config)
    kinds = _kinds(config)
    return entries | ({"attention.indexer.types": kinds} if kinds else {})


def _kinds(config: Config) -> list[bool]:
    """Return for each layer whether it has its own indexer; [] if the configuration does not say it."""
    if "indexer_types" in config:
        return [kind == "full" for kind in config.list("indexer_types", str)]
    pattern = config.get("index_topk_pattern", str, "")
    if pattern:
        return [letter == "F" for letter in pattern]
    every, first = config.get("index_topk_freq", int, 1), config.get("index_skip_topk_offset", int, 2)
    layers = range(config.count("num_hidden_layers"))
    return [max(layer - first + 1, 0) % every == 0 for layer in layers] if every > 1 else []


FAMILY = derived_family("glm-dsa", metadata, deepseek32.special)
CHECKPOINTS = ("GlmMoeDsaForCausalLM",)
