"""Mistral Small 4 (Mistral AI 2026): DeepSeek's latent attention and experts, with Pixtral's encoder."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.families import deepseek2
from chaski.convert.families.pixtral import VISION
from chaski.convert.family import VISION_TENSORS
from chaski.convert.latent import split_heads
from chaski.convert.metadata import Metadata, rope

_ENCODER = replace(VISION, names={})  # Ollama has no names for this architecture


def metadata(config: Config) -> Metadata:
    config.expect("rope_interleave", True)
    entries = deepseek2.metadata(config)
    if "scoring_func" not in config:
        del entries["expert_gating_func"]  # the softmax, which readers assume
    settings = rope(config)
    if "llama_4_scaling_beta" in settings:
        entries["attention.temperature_scale"] = settings.get("llama_4_scaling_beta", float)
    return entries


def special(config: Config) -> Specials:
    return {
        **split_heads(config),
        "ffn_gate_up_exps.weight": Special(sources=("mlp.experts.gate_up_proj",)),
        "ffn_down_exps.weight": Special(sources=("mlp.experts.down_proj",)),
    }


FAMILY = derived_family("mistral4", metadata, special, unused=VISION_TENSORS, vision=_ENCODER)
CHECKPOINTS = ("Mistral4ForCausalLM",)
