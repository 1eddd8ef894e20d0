"""Mistral Small 3 and Ministral 3 (Mistral AI 2025): a text model and Pixtral's image encoder."""

from chaski.model.arch.mistral3.text import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "mistral3",
    "Mistral Small 3.1 and 3.2, Ministral 3, Magistral",
    tools=("mistral", "ministral"),
    thinking=("ministral",),
    reads=("attention.temperature_scale",),
)
