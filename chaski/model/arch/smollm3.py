"""SmolLM 3 (Bakouch et al. 2025): Llama in which every fourth layer does not rotate queries and keys."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml.graph import Tensor
from chaski.ml.nn import DecoderLayer, attention
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "smollm3",
    "SmolLM 3",
    tools=("hermes",),
    thinking=("hermes",),
)

_PERIOD = 4


class UnrotatedAttention(llama.Attention):
    """Attention without positions; `rope` is ignored."""

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q(x).reshape(c.num_heads, c.head_size)
        k = self.attn_k(x).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(llama.Model):
    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        c = self.config
        kinds = (UnrotatedAttention, *(llama.Attention,) * (_PERIOD - 1))
        return [
            llama.Layer(c, kinds[number % _PERIOD](c), self.ffn(file))
            for number in range(1, c.num_layers + 1)
        ]

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        rotated, plain = Causal(c.kv_shape(self.rope())), Causal(c.kv_shape(NO_ROPE))
        return [rotated if layer % _PERIOD else plain for layer in range(1, c.num_layers + 1)]
