"""Llama 3.2 Vision (Llama Team 2024): Llama in which every fifth layer cross-attends to an image."""

from chaski.model.arch.mllama.text import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "mllama",
    "Llama 3.2 Vision",
    tools=("llama3",),
    notes="transformers is the only oracle: llama.cpp lacks it.",
)
