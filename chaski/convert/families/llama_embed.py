"""Llama-Embed-Nemotron (NVIDIA 2025): Llama without an output matrix."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.families import llama
from chaski.convert.metadata import Metadata
from chaski.convert.pooling import read_pooling


def metadata(config: Config) -> Metadata:
    """Without the key for attention, llama.cpp would let no token see those after it."""
    return llama.metadata(config) | {"attention.causal": False, "pooling_type": read_pooling(config)}


FAMILY = derived_family("llama-embed", metadata, rotated_heads, embeds=True)
CHECKPOINTS = ("LlamaBidirectionalModel",)
