"""Talkie 1930 (2026): norms without weights, and the embeddings added again after each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import DecoderLayer, Factor, Module, PlainRMSNorm, attention, output_rows
from chaski.model.arch import llama, qwen2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs

ARCHITECTURE = Architecture("talkie", "Talkie 1930", reads=("logit_scale",))


class HeadGains(Module):
    """A root-mean-square norm of each head of x (n, heads, size), and a factor for each head."""

    def __init__(self, heads: int, eps: float) -> None:
        self.weight = Weight((heads,), host=True, stored=(heads, 1))
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        assert self.weight.array is not None
        return ops.scale_heads(ops.rms_norm(x, None, self._eps), self.weight.array.reshape(-1))


class Attention(llama.Attention):
    """Attention that normalizes queries and keys after their rotation."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = HeadGains(config.num_heads, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope))
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        k = ops.rms_norm(k, None, c.eps)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Layer(llama.Layer):
    """A layer that adds the normalized embeddings, times a number, to its output."""

    def __init__(self, config: DecoderConfig, ffn: llama.FeedForward) -> None:
        super().__init__(config, Attention(config), ffn)
        self.layer_output_scale = Factor()

    def norm(self, config: DecoderConfig) -> PlainRMSNorm:
        return PlainRMSNorm(config.eps)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        first, *others = context
        h, x, first = output_rows(outputs, self.attn(self.attn_norm(x), *others), x, first)
        x = x + h
        return x + self.ffn(self.ffn_norm(x)) + self.layer_output_scale(first)


class Model(qwen2.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._logit_factor = file.get(f"{file.architecture}.logit_scale", float)
        super().__init__(file, projector)

    def norm(self, config: DecoderConfig) -> PlainRMSNorm:
        return PlainRMSNorm(config.eps)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return Layer(self.config, self.ffn(file))

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = self.positions(inputs)
        x = first = self.output_norm(self.embed(inputs))
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, first, rope, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        x = super().head(x, softcap)
        return x if self.config.pooling is not None else x * self._logit_factor
