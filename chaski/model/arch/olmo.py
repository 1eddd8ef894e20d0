"""OLMo 1 (Groeneveld et al. 2024): Llama with layer norms that have no weights."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import PlainLayerNorm, attention
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture("olmo", "OLMo 1", reads=("attention.clamp_kqv",))


class Attention(llama.Attention):
    """Attention whose queries, keys and values are limited to ±`bound`; 0 is no bound."""

    def __init__(self, config: DecoderConfig, bound: float) -> None:
        super().__init__(config)
        self._bound = bound

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q, k, v = (self._limited(each(x)) for each in (self.attn_q, self.attn_k, self.attn_v))
        q = ops.rope(q.reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(k.reshape(c.num_kv_heads, c.head_size), rope)
        v = v.reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))

    def _limited(self, x: Tensor) -> Tensor:
        return ops.clamp(x, low=-self._bound, high=self._bound) if self._bound else x


class Layer(llama.Layer):
    def norm(self, config: DecoderConfig) -> PlainLayerNorm:
        return PlainLayerNorm(config.hidden_size, config.eps)


class Model(llama.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return DecoderConfig.read(file, eps="layer_norm_epsilon")

    def norm(self, config: DecoderConfig) -> PlainLayerNorm:
        return PlainLayerNorm(config.hidden_size, config.eps)

    def layer(self, file: GGUFFile) -> Layer:
        bound = file.get("olmo.attention.clamp_kqv", float, 0.0)
        return Layer(self.config, Attention(self.config, bound), self.ffn(file))
