"""Llama 1 to 3.2, Mistral 7B and all that declares `llama` (Touvron et al. 2023; Llama Team 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, RopeFactors, SwiGLU, attention, rope_frequencies
from chaski.model.config import refuse, rope_scale, vocab_size
from chaski.model.input import Inputs
from chaski.model.pooling import Pooling, read_pooling


@dataclass(frozen=True, slots=True)
class Config:
    vocab_size: int
    context_length: int
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    value_size: int
    rope_dims: int
    rope_base: float
    rope_scale: float
    eps: float
    pooling: Pooling | None

    @classmethod
    def read(cls, file: GGUFFile) -> Config:
        refuse(file, "llama.expert_count", allowed=0, what="experts (mixture of experts)")
        hidden_size = file.get("llama.embedding_length", int)
        num_heads = file.get("llama.attention.head_count", int)
        head_size = file.get("llama.attention.key_length", int, hidden_size // num_heads)
        return cls(
            vocab_size=vocab_size(file),
            context_length=file.get("llama.context_length", int),
            hidden_size=hidden_size,
            ffn_size=file.get("llama.feed_forward_length", int),
            num_layers=file.get("llama.block_count", int),
            num_heads=num_heads,
            num_kv_heads=file.get("llama.attention.head_count_kv", int, num_heads),
            head_size=head_size,
            value_size=file.get("llama.attention.value_length", int, head_size),
            rope_dims=file.get("llama.rope.dimension_count", int, head_size),
            rope_base=file.get("llama.rope.freq_base", float, 10000.0),
            rope_scale=rope_scale(file),
            eps=file.get("llama.attention.layer_norm_rms_epsilon", float),
            pooling=read_pooling(file),
        )


class Attention(Module):
    inline = True

    def __init__(self, config: Config) -> None:
        self._config = config
        self.attn_q = Linear(config.hidden_size, config.num_heads * config.head_size)
        self.attn_k = Linear(config.hidden_size, config.num_kv_heads * config.head_size)
        self.attn_v = Linear(config.hidden_size, config.num_kv_heads * config.value_size)
        self.attn_output = Linear(config.num_heads * config.value_size, config.hidden_size)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Layer(Module):
    def __init__(self, config: Config) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = SwiGLU(config.hidden_size, config.ffn_size)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache, outputs: Tensor | None) -> Tensor:
        h = self.attn(self.attn_norm(x), rope, cache)
        if outputs is not None:  # the last layer goes on with the rows that need logits only
            h, x = h.rows(outputs), x.rows(outputs)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class Model(Module):
    def __init__(self, file: GGUFFile) -> None:
        self.config = config = Config.read(file)
        self.rope_freqs = RopeFactors(config.rope_dims)
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.blk = [Layer(config) for _ in range(config.num_layers)]
        self.output_norm = RMSNorm(config.hidden_size, config.eps)
        self.output = Linear(config.hidden_size, config.vocab_size, optional=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        shape = KVShape(c.num_kv_heads, c.head_size, c.value_size, self._frequencies())
        return [Causal(shape)] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._frequencies())
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, inputs.outputs if layer is self.blk[-1] else None)
        x = self.output_norm(x)
        if self.config.pooling is not None:
            return x
        return self.output(x) if self.output.weight.is_present else self.token_embd.project(x)

    def _frequencies(self) -> npt.NDArray[np.float32]:
        c = self.config
        return rope_frequencies(c.rope_dims, c.rope_base, c.rope_scale, self.rope_freqs.weight.array)
