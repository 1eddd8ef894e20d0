"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on query, key and value, and NeoX pairs."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.ml.graph import Rope
from chaski.model.arch import llama


class Model(llama.Model):
    def rope(self) -> Rope:
        return replace(super().rope(), neox=True)
