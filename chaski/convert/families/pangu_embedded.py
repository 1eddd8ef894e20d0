"""openPangu Embedded (Huawei 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata, head_size


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return common_metadata(config) | {
        "attention.key_length": head_size(config),
        "attention.value_length": head_size(config),
        "rope.dimension_count": head_size(config),
        "vocab_size": config.get("vocab_size", int),
    }


FAMILY = derived_family("pangu-embedded", metadata)
CHECKPOINTS = ("PanguEmbeddedForCausalLM",)
