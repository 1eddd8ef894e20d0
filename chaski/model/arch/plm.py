"""PLM (PLM Team 2025): latent attention, and a feed-forward block with the square of ReLU."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.nn import MLP, DecoderLayer
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.latent import latent_attention, latent_config

ARCHITECTURE = Architecture("plm", "PLM 1.8B")


class Model(llama.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return latent_config(file, super().read_config(file))

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, latent_attention(file, self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.squared_relu)
