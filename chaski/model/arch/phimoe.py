"""Phi 3.5 with experts (Abdin et al. 2024): layer norms, biases, and experts chosen by SparseMixer."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, LayerNorm
from chaski.model.arch import llama, phi3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import experts, read_router

ARCHITECTURE = Architecture(
    "phimoe",
    "Phi 3.5 MoE, Phi mini MoE",
    notes="Computes layer norms and SparseMixer as the model was trained; llama.cpp computes others.",
    reads=("attention.sliding_window",),
)


class Layer(llama.Layer):
    def norm(self, config: DecoderConfig) -> LayerNorm:
        return LayerNorm(config.hidden_size, config.eps)


class Model(phi3.Model):
    def norm(self, config: DecoderConfig) -> LayerNorm:
        return LayerNorm(config.hidden_size, config.eps)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        config = self.config
        block = experts(file, config, read_router(file, Gating.NEAREST, normalized=False))
        return Layer(config, llama.Attention(config), block)
