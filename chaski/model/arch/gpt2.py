"""GPT-2 (Radford et al. 2019): layer norms with biases, an embedding for each position, no gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import (
    MLP,
    DecoderLayer,
    Embedding,
    Joined,
    LayerNorm,
    Linear,
    Module,
    Norm,
    attention,
    output_rows,
)
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "gpt2",
    "GPT-2, Cerebras-GPT, ruGPT-3",
    notes="Its context ends at its last position: a shift would need other embeddings.",
)


class Attention(Module):
    """Attention with an optional rope, and an optional bias for the distance of a key."""

    inline = True
    joined = Joined("attn_qkv", ("attn_q", "attn_k", "attn_v"))

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self.attn_q = Linear(config.hidden_size, config.num_heads * config.head_size)
        self.attn_k = Linear(config.hidden_size, config.num_kv_heads * config.head_size)
        self.attn_v = Linear(config.hidden_size, config.num_kv_heads * config.value_size)
        self.attn_output = Linear(config.num_heads * config.value_size, config.hidden_size)

    def __call__(
        self, x: Tensor, rope: Tensor | None, bias: ops.DistanceBias | None, cache: LayerCache
    ) -> Tensor:
        c = self._config
        q, k, v = self.projections(x)
        q, k = q.reshape(c.num_heads, c.head_size), k.reshape(c.num_kv_heads, c.head_size)
        if rope is not None:
            q, k = ops.rope(q, rope), ops.rope(k, rope)
        v = v.reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=self.scale, bias=bias))

    @property
    def scale(self) -> float:
        """Return the factor of the scores."""
        return float(self._config.head_size**-0.5)

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before the rope."""
        return self.attn_q(x), self.attn_k(x), self.attn_v(x)


class Layer(DecoderLayer):
    """Attention, then the feed-forward block; each reads a norm and adds its output."""

    def __init__(self, config: DecoderConfig, attn: Attention, ffn: Callable[[Tensor], Tensor]) -> None:
        self.attn_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        self.attn = attn
        self.ffn_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class ParallelLayer(Layer):
    """Both blocks read the same states."""

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        return x + h + self.ffn(self.ffn_norm(x))


class OneNormLayer(DecoderLayer):
    """Both blocks read the same norm of the states."""

    def __init__(
        self, config: DecoderConfig, attn: Callable[..., Tensor], ffn: Callable[[Tensor], Tensor]
    ) -> None:
        self.attn_norm = self.norm(config)
        self.attn = attn
        self.ffn = ffn

    def norm(self, config: DecoderConfig) -> Norm:
        """Return a norm of the hidden states."""
        return LayerNorm(config.hidden_size, config.eps, bias=False)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        normed = self.attn_norm(x)
        h, normed, x = output_rows(outputs, self.attn(normed, *context), normed, x)
        return x + h + self.ffn(normed)


class LayerNormDecoder(Decoder):
    """A decoder with layer norms; subclasses add positions: to the embeddings, by a rope or to the scores."""

    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, eps="layer_norm_epsilon")
        super().__init__(config)
        self.blk = [self.layer(file) for _ in range(config.num_layers)]

    def norm(self, config: DecoderConfig) -> LayerNorm:
        return LayerNorm(config.hidden_size, config.eps, bias=False)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return Layer(self.config, Attention(self.config), self.ffn())

    def ffn(self) -> Callable[[Tensor], Tensor]:
        """Return the feed-forward block of a layer."""
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.gelu_tanh)

    def rope(self) -> Rope | None:
        return None

    def bias(self, inputs: Inputs) -> ops.DistanceBias | None:
        """Return the term that is added to the scores for the distance of a key, or None."""
        return None

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the input of the first layer."""
        return self.token_embd(inputs.tokens)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        shape = c.kv_shape(self.rope() or NO_ROPE)
        return [Causal(shape)] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = self.rope()
        table = None if rope is None else inputs.rope_table(rope)
        x, bias = self.embed(inputs), self.bias(inputs)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, table, bias, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))


class Model(LayerNormDecoder):
    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        self.max_context = self.config.context_length
        self.position_embd = Embedding(self.max_context, self.config.hidden_size)

    def embed(self, inputs: Inputs) -> Tensor:
        return self.token_embd(inputs.tokens) + self.position_embd(inputs.positions)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [Causal(self.config.kv_shape())] * self.config.num_layers
