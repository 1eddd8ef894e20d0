"""The families of checkpoints, one module each: `FAMILY` converts the architectures in `CHECKPOINTS`.

If `module_of` is defined, it returns the module with the family of a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.family import VISION_TENSORS, Family
from chaski.errors import UnsupportedError

__all__ = ["ENCODERS", "TEXT_MODELS", "TEXT_PARTS", "families", "family_in", "find_family"]


@cache
def families() -> Mapping[str, ModuleType]:
    """Return the module that converts each architecture of `config.json`, as the modules declare."""
    modules = [_module(module.name) for module in iter_modules(__path__)]
    return {name: module for module in modules for name in getattr(module, "CHECKPOINTS", ())}


_MEANT_BY = {
    "LlamaForCausalLM": ("draft_vocab_size", "eagle3"),
    "NomicBertModel": ("moe_every_n_layers", "nomicbertmoe"),
    "XLMRobertaModel": ("lora_adaptations", "jinabert3"),
}
"""Releases that use another architecture's name: the setting that distinguishes them, and their file."""

ENCODERS = {
    "Idefics3ForConditionalGeneration": "idefics3",
    "InternVLChatModel": "internvl_chat",
    "InternVLForConditionalGeneration": "internvl",
    "Lfm2VlForConditionalGeneration": "lfm2_vl",
    "LlavaForConditionalGeneration": "llava",
    "LlavaNextForConditionalGeneration": "llava",
    "MiniCPMV": "minicpmv",
    "SmolVLMForConditionalGeneration": "idefics3",
}
"""Encoders of images for any text model; their modules define `VISION`.

If the checkpoint's configuration has no part for the text model, the module also defines `text_model`, which
returns the text model's type for a configuration."""

TEXT_PARTS = {
    "AudioFlamingo3ForConditionalGeneration": "qwen2",
    "DotsOCRForCausalLM": "qwen2",
    "JanusForConditionalGeneration": "llama",
    "MiniCPMV4_6ForConditionalGeneration": "qwen35",
    "Phi4ForCausalLMV": "phi3",
    "Qwen2AudioForConditionalGeneration": "qwen2",
    "Qwen2_5OmniModel": "qwen2vl",
    "Qwen3ASRForConditionalGeneration": "qwen3vl",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3vlmoe",
    "StepVLForConditionalGeneration": "qwen3",
    "VoxtralForConditionalGeneration": "llama",
}
"""Models with images or sound whose text model alone is converted, with the file that converts it."""

_OTHER_PARTS = (
    r"(audio_tower|vision_model|vision_tower|visual)\..*",
    r"(aligner|merger|mm_projector|multi_modal_projector|vit_large_projector)\..*",
    r"(code2wav|generation_\w+|talker|token2wav|vqmodel)\..*",
)
"""The tensors of these models that do not belong to the text model."""

TEXT_MODELS = {
    "granite": "granite",
    "internlm2": "internlm2",
    "lfm2": "lfm2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
"""The file that converts the text model of such an encoder, by the `model_type` of its part."""


def find_family(config: Config) -> Family:
    """Return the family for a configuration. Raises UnsupportedError for unknown architectures."""
    names = config.list("architectures", str)
    name = names[0] if names else None
    if name in ENCODERS:
        return _seeing(config, _module(ENCODERS[name]))
    if name in TEXT_PARTS:
        return _alone(family_in(TEXT_PARTS[name]))
    if name is None or name not in families():
        known = ", ".join(sorted({*families(), *ENCODERS, *TEXT_PARTS}))
        raise UnsupportedError(
            f"{config.path}: architecture {name!r:.80} cannot be converted; known are {known}"
        )
    key, other = _MEANT_BY.get(name, ("", ""))
    if config.values.get(key):
        return family_in(other)
    module = families()[name]
    if hasattr(module, "module_of"):
        return family_in(module.module_of(config))
    family: Family = module.FAMILY
    return family


def family_in(module: str) -> Family:
    """Return the family of a module of this package."""
    family: Family = _module(module).FAMILY
    return family


def _seeing(config: Config, encoder: ModuleType) -> Family:
    """Return the family of the text model, with this image encoder added."""
    if hasattr(encoder, "text_model"):
        kind = encoder.text_model(config)
    else:
        text = config.part("text_config")
        text.expect("model_type", *TEXT_MODELS)
        kind = text.get("model_type", str, "llama")
    name = TEXT_MODELS[kind]
    family = family_in(name)
    return replace(
        family,
        unused=(*family.unused, *VISION_TENSORS),
        vision=encoder.VISION,
        defaults={**family.defaults, **encoder.DEFAULTS.get(name, {})},
    )


def _alone(family: Family) -> Family:
    """The family of a text model, for checkpoints with other parts, which are not converted."""

    def observed(names: Set[str]) -> Mapping[str, Any]:
        return {**family.observed(names), "vision_config": None}

    return replace(family, unused=(*family.unused, *_OTHER_PARTS), vision=None, observed=observed)


def _module(name: str) -> ModuleType:
    return import_module(f"chaski.convert.families.{name}")
