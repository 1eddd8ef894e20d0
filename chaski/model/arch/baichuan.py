"""Baichuan (Yang et al. 2023): Llama; the models with 13B parameters have ALiBi instead of a rope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import attention
from chaski.model.alibi import alibi, alibi_slopes
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.input import Inputs
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture("baichuan", "Baichuan 1 and 2")

_LAYERS_OF_13B = 40  # files do not say that they need ALiBi
_LARGEST_BIAS = 8.0


class BiasedAttention(llama.Attention):
    """Attention whose scores have a bias for the distance of a key."""

    def __call__(self, x: Tensor, bias: Any, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q(x).reshape(c.num_heads, c.head_size)
        k = self.attn_k(x).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5, bias=bias))


class Model(llama.Model):
    @property
    def has_rope(self) -> bool:
        """Return whether positions are in a rope and not in a bias of the scores."""
        return self.config.num_layers != _LAYERS_OF_13B

    def layer(self, file: GGUFFile) -> llama.Layer:
        kind = llama.Attention if self.has_rope else BiasedAttention
        return llama.Layer(self.config, kind(self.config), self.ffn(file))

    def positions(self, inputs: Inputs) -> Tensor | ops.DistanceBias:
        if self.has_rope:
            table: Tensor = super().positions(inputs)
            return table
        slopes = alibi_slopes(self.config.num_heads, _LARGEST_BIAS)
        return alibi(slopes, self.context, inputs.positions)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return super().layer_kinds() if self.has_rope else [Causal(c.kv_shape(NO_ROPE))] * c.num_layers
