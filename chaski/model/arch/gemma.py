"""Gemma 1 (Gemma Team 2024): Llama with GeGLU, a NeoX rope and scaled embeddings."""

from __future__ import annotations

import math

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import SwiGLU
from chaski.model.arch import llama
from chaski.model.architecture import GELU, Architecture
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "gemma",
    "Gemma 1, CodeGemma",
    fixed={"hidden_activation": GELU},
)


class Model(llama.Model):
    def ffn(self, file: GGUFFile) -> SwiGLU:
        return SwiGLU(self.config.hidden_size, self.config.ffn_size, ops.geglu)

    def embed(self, inputs: Inputs) -> Tensor:
        return inputs.with_images(self.token_embd(inputs.tokens) * math.sqrt(self.config.hidden_size))

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
