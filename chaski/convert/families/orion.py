"""Orion (OrionStar 2024). Its configuration calls the norms root-mean-square norms, which they are not."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.metadata import Metadata, common_metadata


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    entries = common_metadata(config)
    entries["attention.layer_norm_epsilon"] = entries.pop("attention.layer_norm_rms_epsilon")
    return entries


FAMILY = derived_family("orion", metadata)
CHECKPOINTS = ("OrionForCausalLM",)
