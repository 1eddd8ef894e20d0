"""Phi 1 to 2 (Gunasekar et al. 2023): blocks side by side, and a rope for a part of each head."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.model.arch import gpt2, starcoder2
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("phi2", "Phi 1, 1.5 and 2")


class Model(starcoder2.Model):
    def layer(self, file: GGUFFile) -> gpt2.OneNormLayer:
        return gpt2.OneNormLayer(self.config, gpt2.Attention(self.config), self.ffn())
