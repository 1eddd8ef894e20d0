"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on query, key and value, and NeoX pairs."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.ml.graph import Rope
from chaski.model.arch import llama
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "qwen2",
    "Qwen 2 and 2.5, QwQ, DeepSeek R1 Distill Qwen, InternVL 2.5 and 3, MiniCPM-V 2.6",
    tools=("hermes",),
    thinking=("hermes",),
    notes="Pictures with a projector of InternVL or MiniCPM-V.",
)


class Model(llama.Model):
    def rope(self) -> Rope:
        return replace(super().rope(), neox=True)
