"""Command R (Cohere 2024): layer norms, blocks side by side, and scaled logits."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml.graph import Tensor
from chaski.ml.nn import HeadNorms, LayerNorm, attention
from chaski.model import windowed
from chaski.model.arch.gpt2 import OneNormLayer
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.windowed import WindowedModel, rotated

ARCHITECTURE = Architecture(
    "command-r",
    "Command R and R+, Aya 23 and Expanse",
    tools=("command-r",),
    reads=("logit_scale",),
)


class Attention(windowed.Attention):
    """Attention that may normalize each head of queries and keys (Command R+)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = HeadNorms(config.num_heads, config.head_size, config.eps, optional=True)
        self.attn_k_norm = HeadNorms(config.num_kv_heads, config.head_size, config.eps, optional=True)

    def __call__(self, x: Tensor, rope: Tensor | None, cache: LayerCache) -> Tensor:
        c = self._config
        q, k = self.attn_q(x), self.attn_k(x)
        if self.attn_q_norm.weight.is_present:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        q = rotated(q.reshape(c.num_heads, c.head_size), rope)
        k = rotated(k.reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(WindowedModel):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._logit_factor = file.get(f"{file.architecture}.logit_scale", float, 0.0) or 1.0
        super().__init__(file, projector)

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return DecoderConfig.read(file, eps="layer_norm_epsilon")

    def norm(self, config: DecoderConfig) -> LayerNorm:
        return LayerNorm(config.hidden_size, config.eps, bias=False)

    def layer(self, file: GGUFFile) -> OneNormLayer:
        return OneNormLayer(self.config, Attention(self.config), self.ffn(file))

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        x = super().head(x, softcap)
        return x if self.config.pooling is not None else x * self._logit_factor
