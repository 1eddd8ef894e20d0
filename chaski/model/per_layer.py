"""Per-layer embeddings (Gemma 3n and 4): each layer reads a small vector per token next to the states."""

from __future__ import annotations

import math
from collections.abc import Sequence

from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm
from chaski.model.config import DecoderConfig

__all__ = ["PerLayerBlock", "PerLayerInputs"]


class PerLayerInputs(Module):
    """The vectors of all layers, computed from a separate table and from the input of the first layer."""

    inline = True

    def __init__(self, config: DecoderConfig, size: int) -> None:
        self._layers, self._size = config.num_layers, size
        self._scale = config.hidden_size**-0.5
        self.per_layer_token_embd = Embedding(config.vocab_size, config.num_layers * size)
        self.per_layer_model_proj = Linear(config.hidden_size, config.num_layers * size)
        self.per_layer_proj_norm = RMSNorm(size, config.eps)

    def __call__(self, tokens: Tensor, x: Tensor) -> Sequence[Tensor]:
        """Return (n, size) for each layer, from `tokens` (n,) and their embeddings x (n, hidden size)."""
        own = self.per_layer_token_embd(tokens) * math.sqrt(self._size)
        projected = (self.per_layer_model_proj(x) * self._scale).reshape(self._layers, self._size)
        normed = self.per_layer_proj_norm(projected).reshape(self._layers * self._size)
        both = (normed + own) * math.sqrt(0.5)
        return [ops.slice(both, index * self._size, self._size) for index in range(self._layers)]


class PerLayerBlock(Module):
    """A layer's use of its vector: the states gate it, and a matrix projects it to their size."""

    inline = True

    def __init__(self, config: DecoderConfig, size: int) -> None:
        self.inp_gate = Linear(config.hidden_size, size)
        self.proj = Linear(size, config.hidden_size)
        self.post_norm = RMSNorm(config.hidden_size, config.eps)

    def __call__(self, x: Tensor, own: Tensor) -> Tensor:
        return self.post_norm(self.proj(ops.geglu(self.inp_gate(x), own)))
