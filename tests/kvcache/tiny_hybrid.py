"""A tiny random model whose layers keep what the test wants: tokens within some span, or states."""

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


class Layer(Module):
    def __init__(self, mixer: Attention | ShortConv) -> None:
        self.norm = RMSNorm(HIDDEN, 1e-5)
        self.mixer = mixer
        self.ffn_norm = RMSNorm(HIDDEN, 1e-5)
        self.ffn = SwiGLU(HIDDEN, HIDDEN)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache | RecurrentLayer) -> Tensor:
        x = x + self.mixer(self.norm(x), rope, cache)
        return x + self.ffn(self.ffn_norm(x))


class TinyHybrid(Module):
    """`layers` has for each layer how far it sees, or None for a convolution."""

    def __init__(self, layers: Sequence[AttentionSpan | None]) -> None:
        self.token_embd = Embedding(VOCAB, HIDDEN)
        self.blk = [
            Layer(ShortConv() if span is None else Attention(1 + index % 2, span))
            for index, span in enumerate(layers)
        ]
        self.output_norm = RMSNorm(HIDDEN, 1e-5)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [layer.mixer.kind for layer in self.blk]

    def bind(self, backend: Backend, directory: Path) -> None:
        """Give it weights that depend on its layers only, from a file in `directory`."""
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
