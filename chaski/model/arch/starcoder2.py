"""StarCoder 2 (Lozhkov et al. 2024): GPT-2 with a rope and few key/value heads."""

from __future__ import annotations

from chaski.ml.graph import Rope
from chaski.model.arch import gpt2
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "starcoder2",
    "StarCoder 2",
    notes="Files have no window, so the converter limits the context to it.",
)


class Model(gpt2.LayerNormDecoder):
    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
