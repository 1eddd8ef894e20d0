"""ERNIE 4.5, dense (Baidu 2025)."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    return common_metadata(config)


FAMILY = derived_family("ernie4_5", metadata)
CHECKPOINTS = ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
