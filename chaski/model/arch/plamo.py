"""PLaMo 13B (Preferred Networks 2023): Llama whose two blocks read one norm of the states."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.nn import DecoderLayer, Norm, RMSNorm
from chaski.model.arch import gpt2, llama, qwen2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture("plamo", "PLaMo 13B")


class Layer(gpt2.OneNormLayer):
    def norm(self, config: DecoderConfig) -> Norm:
        return RMSNorm(config.hidden_size, config.eps)


class Model(qwen2.Model):
    def layer(self, file: GGUFFile) -> DecoderLayer:
        return Layer(self.config, llama.Attention(self.config), self.ffn(file))
