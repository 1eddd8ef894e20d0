"""Arcee's AFM (Arcee AI 2025): Llama with a squared ReLU instead of a gate."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family, rotated_heads
from chaski.convert.families import llama
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    return llama.metadata(config, activation="relu2")


FAMILY = derived_family("arcee", metadata, rotated_heads)
CHECKPOINTS = ("ArceeForCausalLM",)
