"""Granite 3 and 4, dense (Granite Team 2024): Llama with factors for embeddings, residuals and logits."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.families import llama
from chaski.convert.metadata import Metadata

_FACTORS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def metadata(config: Config) -> Metadata:
    return llama.metadata(config) | {name: config.get(key, float, 1.0) for key, name in _FACTORS.items()}


FAMILY = replace(llama.FAMILY, architecture="granite", metadata=metadata)
CHECKPOINTS = ("GraniteForCausalLM", "GraniteModel")
