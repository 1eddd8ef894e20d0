"""Mistral Small 3.1 and Ministral 3 (Mistral AI 2025): Llama whose queries may be scaled by position."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.families import llama
from chaski.convert.families.pixtral import VISION
from chaski.convert.family import VISION_TENSORS, Family
from chaski.convert.metadata import Metadata, rope


def module_of(config: Config) -> str:
    """Return the module that converts a configuration of this name: Mistral Small 4 shares it."""
    text = config.part("text_config").over(config)
    return "mistral4" if text.get("model_type", str, "") == "mistral4" else "mistral3"


def metadata(config: Config) -> Metadata:
    entries = llama.metadata(config)
    settings = rope(config)
    if settings.get("mscale", float, 0.0) == 1 and "attention_factor" not in settings:
        # This architecture has a key for the other scale.
        entries.pop("rope.scaling.attn_factor", None)
        entries["rope.scaling.yarn_log_multiplier"] = settings.get("mscale_all_dim", float, 0.0)
    if "llama_4_scaling_beta" in settings:
        entries["attention.temperature_scale"] = settings.get("llama_4_scaling_beta", float)
    return entries


FAMILY = Family("mistral3", metadata, llama.tensors, VISION_TENSORS, VISION)
CHECKPOINTS = ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")
