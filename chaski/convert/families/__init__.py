"""The table of which file converts which architecture of `config.json`; imported on demand."""

from __future__ import annotations

from importlib import import_module

from chaski.convert.config import Config
from chaski.convert.family import Family
from chaski.errors import UnsupportedError

__all__ = ["FAMILIES", "find_family"]

FAMILIES = {
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma3TextModel": "gemma_embedding",
    "Gemma3nForCausalLM": "gemma3n",
    "Gemma3nForConditionalGeneration": "gemma3n",
    "Gemma4ForCausalLM": "gemma4",
    "Gemma4ForConditionalGeneration": "gemma4",
    "GptOssForCausalLM": "gptoss",
    "Lfm2ForCausalLM": "lfm2",
    "LlamaForCausalLM": "llama",
    "Llama4ForCausalLM": "llama4",
    "Llama4ForConditionalGeneration": "llama4",
    "LlavaForConditionalGeneration": "llava",
    "Ministral3ForCausalLM": "mistral3",
    "Mistral3ForConditionalGeneration": "mistral3",
    "MistralForCausalLM": "llama",
    "MllamaForConditionalGeneration": "mllama",
    "NomicBertModel": "nomicbert",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Qwen3NextForCausalLM": "qwen3next",
    "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5ForConditionalGeneration": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen35moe",
}


def find_family(config: Config) -> Family:
    """The family of a configuration; UnsupportedError for one that has no file here."""
    names = config.list("architectures")
    name = names[0] if names else None
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedError(
            f"{config.path}: architecture {name!r:.80} cannot be converted; known are {known}"
        )
    family: Family = import_module(f"chaski.convert.families.{FAMILIES[name]}").FAMILY
    return family
