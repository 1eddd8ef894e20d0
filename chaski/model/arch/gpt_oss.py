"""gpt-oss (OpenAI 2025): sinks, windows in every other layer, YaRN, and experts with a bounded SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import Module, MoE, attention
from chaski.model.arch import llama
from chaski.model.arch.seed_oss import Layer
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.decoder import Decoder
from chaski.model.experts import read_router
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "gpt-oss",
    "gpt-oss",
    tools=("harmony",),
    thinking=("harmony",),
    notes="The difference applies to float32 weights; with MXFP4 weights, the CPU rounds activations.",
    reads=("attention.sliding_window",),
)


_PERIOD = 2
_ALPHA, _LIMIT = 1.702, 7.0
# Reasoning is dropped between turns, so a prompt often continues from a point far before the end.
_MEMORY = 4096


class Sinks(Module):
    def __init__(self, num_heads: int) -> None:
        self.weight = Weight((num_heads,), split=0)


class Attention(llama.Attention):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_sinks = Sinks(config.num_heads)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        sinks = self.attn_sinks.weight
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5, sinks=sinks))


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        hidden = file.get("gpt-oss.expert_feed_forward_length", int)
        router = read_router(file, Gating.CHOSEN_SOFTMAX, normalized=False)
        activation = partial(ops.clamped_swiglu, alpha=_ALPHA, limit=_LIMIT)
        self.blk = [
            Layer(config, Attention(config), MoE(config.hidden_size, hidden, router, activation))
            for _ in range(config.num_layers)
        ]
        self._window = file.get("gpt-oss.attention.sliding_window", int)
        self._near = sliding_layers(file, config.num_layers, _PERIOD)
        self._rope = config.rope.untruncated().rope(neox=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        shape = c.kv_shape(self._rope)
        near = AttentionSpan(self._window, memory=max(self._window, _MEMORY))
        return [Causal(shape, near if is_near else AttentionSpan()) for is_near in self._near]

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._rope)
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
