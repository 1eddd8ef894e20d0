"""A tiny random model whose layers keep tokens within a span, or states, as the test chooses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.kvcache import (
    AttentionSpan,
    Causal,
    Checkpoints,
    KVShape,
    LayerCache,
    LayerKind,
    Recurrent,
    RecurrentLayer,
    StateShape,
    gated_delta,
)
from chaski.ml import Backend, ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, SwiGLU
from chaski.model.input import Inputs
from chaski.model.weights import bind_weights

VOCAB, HIDDEN, HEADS, SIZE, TAPS = 256, 64, 4, 16, 3
ROPE = Rope(np.float32(10000.0) ** -np.linspace(0, 1, SIZE // 2, dtype=np.float32))


class Attention(Module):
    """Self-attention with `kv_heads` heads of keys and values."""

    inline = True

    def __init__(self, kv_heads: int, span: AttentionSpan) -> None:
        self.kind = Causal(KVShape(kv_heads, SIZE, SIZE, ROPE), span)
        self.q = Linear(HIDDEN, HEADS * SIZE)
        self.k = Linear(HIDDEN, kv_heads * SIZE)
        self.v = Linear(HIDDEN, kv_heads * SIZE)
        self.out = Linear(HEADS * SIZE, HIDDEN)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        heads = self.kind.shape.heads
        q = ops.rope(self.q(x).reshape(HEADS, SIZE), rope)
        k = ops.rope(self.k(x).reshape(heads, SIZE), rope)
        keys, values, mask = cache.update(k, self.v(x).reshape(heads, SIZE))
        return self.out(ops.attention(q, keys, values, mask, scale=SIZE**-0.5).reshape(HEADS * SIZE))


class ShortConv(Module):
    """A convolution along the sequence, between two matrices."""

    inline = True

    def __init__(self) -> None:
        self.kind = Recurrent((StateShape(TAPS - 1, HIDDEN),), Checkpoints(count=3, first=4, interval=9))
        self.conv_in = Linear(HIDDEN, HIDDEN)
        self.filter = Weight((HIDDEN, TAPS), host=True)
        self.conv_out = Linear(HIDDEN, HIDDEN)

    def __call__(self, x: Tensor, rope: Tensor, cache: RecurrentLayer) -> Tensor:
        assert self.filter.array is not None
        (states,) = cache.states
        return self.conv_out(ops.short_conv(self.conv_in(x), self.filter.array, states, cache.segments))


class Delta(Module):
    """A gated delta net with few weights, heads of 16 x 16, and two heads per key head."""

    inline = True

    def __init__(self) -> None:
        self.kind = gated_delta(
            key_heads=1,
            value_heads=2,
            key_size=SIZE,
            value_size=SIZE,
            taps=TAPS,
            checkpoints=Checkpoints(count=3, first=4, interval=40),
        )
        self.qkv = Linear(HIDDEN, HIDDEN)
        self.filter = Weight((HIDDEN, TAPS), host=True)
        self.decay, self.rate = Linear(HIDDEN, 2), Linear(HIDDEN, 2)
        self.delta_out = Linear(2 * SIZE, HIDDEN)

    def __call__(self, x: Tensor, rope: Tensor, cache: RecurrentLayer) -> Tensor:
        assert self.filter.array is not None
        qkv = ops.chunked_conv(self.qkv(x), self.filter.array, cache.states[0], cache.rows[0], cache.segments)
        q, k = (ops.l2_norm(ops.slice(qkv, i * SIZE, SIZE).reshape(1, SIZE), 1e-6) for i in range(2))
        v = ops.slice(qkv, 2 * SIZE, 2 * SIZE).reshape(2, SIZE)
        log_decay, beta = ops.softplus(self.decay(x)) * -1.0, ops.sigmoid(self.rate(x))
        y = ops.gated_delta(q, k, v, log_decay, beta, cache.states[1], cache.rows[1:], cache.segments)
        return self.delta_out(y.reshape(2 * SIZE))


class Layer(Module):
    def __init__(self, mixer: Attention | ShortConv | Delta) -> None:
        self.norm = RMSNorm(HIDDEN, 1e-5)
        self.mixer = mixer
        self.ffn_norm = RMSNorm(HIDDEN, 1e-5)
        self.ffn = SwiGLU(HIDDEN, HIDDEN)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache | RecurrentLayer) -> Tensor:
        x = x + self.mixer(self.norm(x), rope, cache)
        return x + self.ffn(self.ffn_norm(x))


class TinyHybrid(Module):
    """`layers` gives each layer's span, or the class of its recurrence: `ShortConv` or `Delta`."""

    def __init__(self, layers: Sequence[AttentionSpan | type[ShortConv | Delta]]) -> None:
        self.token_embd = Embedding(VOCAB, HIDDEN)
        self.blk = [
            Layer(Attention(1 + index % 2, layer) if isinstance(layer, AttentionSpan) else layer())
            for index, layer in enumerate(layers)
        ]
        self.output_norm = RMSNorm(HIDDEN, 1e-5)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [layer.mixer.kind for layer in self.blk]

    def bind(self, backend: Backend, directory: Path) -> None:
        """Bind weights from a file in `directory`; they depend only on the layers."""
        random = np.random.default_rng(3)
        tensors = {}
        for name, weight in self.weights():
            if not weight.optional:
                array = random.standard_normal(weight.shape) * 1.5 / weight.shape[-1] ** 0.5
                tensors[name] = (array.astype(np.float32), QuantType.F32)
        path = directory / "hybrid.gguf"
        write_gguf(path, {"general.architecture": "test"}, tensors)
        bind_weights(self, open_gguf(path), backend, lambda _: None)

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache | RecurrentLayer]) -> Tensor:
        rope = ops.rope_table(inputs.positions, ROPE)
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache)
        return self.token_embd.project(self.output_norm(x.rows(inputs.outputs)))
