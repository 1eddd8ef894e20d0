"""Mistral Small 3.1 and Ministral 3 (Mistral AI 2025): Llama whose queries may grow as text does."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.families import llama
from chaski.convert.families.pixtral import SIGHT
from chaski.convert.family import VISION, Family
from chaski.convert.metadata import Metadata, rope


def metadata(config: Config) -> Metadata:
    entries = llama.metadata(config)
    settings = rope(config)
    settings.expect("mscale", 1.0)
    for name, key in (
        ("mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
        ("llama_4_scaling_beta", "attention.temperature_scale"),
    ):
        if name in settings:
            entries[key] = settings.get(name, float)
    return entries


FAMILY = Family("mistral3", metadata, llama.tensors, VISION, SIGHT)
