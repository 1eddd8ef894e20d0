"""Llama 3.2 Vision (Llama Team 2024): text and vision in one file, under the names that Ollama gives them."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families.mllama import text, vision
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Planned

__all__ = ["FAMILY"]


def metadata(config: Config) -> Metadata:
    seen = vision.metadata(config.part("vision_config"))
    return text.metadata(config) | {f"vision.{key}": value for key, value in seen.items()}


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from text.tensors(config)
    yield from vision.tensors(config.part("vision_config"))
    yield from vision.projector(config.part("vision_config"), config.get("hidden_size", int))


FAMILY = Family("mllama", metadata, tensors, num_extra_tokens=text.IMAGE_TOKENS)
CHECKPOINTS = ("MllamaForConditionalGeneration",)
