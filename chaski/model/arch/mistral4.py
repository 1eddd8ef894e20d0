"""Mistral Small 4 (Mistral AI 2026): the layers of DeepSeek V2."""

from __future__ import annotations

from chaski.model.arch.deepseek2 import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "mistral4",
    "Mistral Small 4",
    tools=("mistral",),
    thinking=("mistral",),
    reads=("attention.temperature_scale", "leading_dense_block_count", "nextn_predict_layers"),
)
