"""MiniMax Text 01 and M1 (MiniMax 2025): linear attention with fixed decays in most layers, and experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerKind, RecurrentLayer, linear_attention
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import DecoderLayer, Linear, Module, RMSNorm, output_rows
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, is_recurrent
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "minimax-01",
    "MiniMax Text 01 and M1",
    tools=("minimax-m1",),
    thinking=("minimax-m1",),
    reads=("full_attention_interval", "residual_scale"),
)

_EPS = 1e-6  # of the norm of linear attention, whatever that of the other norms


class LightningAttention(Module):
    """Linear attention (Qin et al. 2024): the state S of a head decays and adds k vᵀ; gates multiply q S."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        c = self._config = config
        width = c.num_heads * c.head_size
        self.attn_qkv = Linear(c.hidden_size, 3 * width)
        self.attn_norm_2 = RMSNorm(width, _EPS)
        self.attn_gate = Linear(c.hidden_size, width)
        self.attn_output = Linear(width, c.hidden_size)

    def __call__(self, x: Tensor, decays: tuple[Tensor, Tensor], cache: RecurrentLayer) -> Tensor:
        """Attend for rows of x. `decays` are ones and the logarithms of decays of heads (n, heads)."""
        c, (ones, log_decays) = self._config, decays
        heads = ops.silu(self.attn_qkv(x)).reshape(c.num_heads, 3 * c.head_size)
        q, k, v = (ops.slice(heads, part * c.head_size, c.head_size) for part in range(3))
        nothing = np.zeros(c.num_heads, np.float32)
        y = ops.ssd(q, k, v, log_decays, ones, nothing, cache.states[0], cache.rows, cache.segments)
        y = self.attn_norm_2(y.reshape(c.num_heads * c.head_size))
        return self.attn_output(ops.multiply(ops.sigmoid(self.attn_gate(x)), y))


class Layer(DecoderLayer):
    """Two blocks, each of which adds its output to the scaled norm that it has read."""

    def __init__(self, config: DecoderConfig, scale: float, attn: Any, ffn: llama.FeedForward) -> None:
        self._scale = scale
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = attn
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        x = self.attn_norm(x)
        h, x = output_rows(outputs, self.attn(x, *context), x)
        x = self.ffn_norm(x * self._scale + h)
        return x * self._scale + self.ffn(x)


class Model(llama.Model):
    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        c = self.config
        scale = file.get("minimax-01.residual_scale", float)
        self._is_linear = tuple(is_recurrent(file, c.num_layers, interval=8)[: c.num_layers])
        return [
            Layer(c, scale, LightningAttention(c) if is_linear else llama.Attention(c), self.ffn(file))
            for is_linear in self._is_linear
        ]

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        linear = linear_attention(
            key_heads=c.num_heads, value_heads=c.num_heads, key_size=c.head_size, value_size=c.head_size
        )
        attending = Causal(c.kv_shape(self.rope()))
        return [linear if is_linear else attending for is_linear in self._is_linear]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        c, rope = self.config, self.positions(inputs)
        one = ops.position_scale(inputs.positions, length=1, beta=0.0)
        slopes = [2 ** (-8 * head / c.num_heads) for head in range(1, c.num_heads + 1)]
        ones = ops.concat([(one, head, 1) for head in range(c.num_heads)])
        decays = ops.concat([(one * -slope, head, 1) for head, slope in enumerate(slopes)])
        x = self.embed(inputs)
        for index, (layer, is_linear, cache) in enumerate(
            zip(self.blk, self._is_linear, caches, strict=True)
        ):
            share = 1 - index / (c.num_layers - 1 + 1e-5) + 1e-5
            context = (ones, decays * share) if is_linear else rope
            x = layer(x, context, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)
