"""Ling (Ling Team 2025): Llama with leading dense layers, experts and shared experts."""

from __future__ import annotations

from chaski.model.arch import deepseek
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "bailingmoe", "Ling Lite, Ling Plus, Ring Lite", reads=("leading_dense_block_count",)
)

Model = deepseek.Model
