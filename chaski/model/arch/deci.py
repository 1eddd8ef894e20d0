"""Nemotron Super and Ultra (Bercovich et al. 2024) and DeciLM: Llama without some of its blocks.

A search replaced attention by a matrix or by nothing, and changed the sizes of feed-forward blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml.graph import Tensor
from chaski.ml.nn import DecoderLayer, Linear, Module, RMSNorm, SwiGLU, output_rows
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, of_layers
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "deci",
    "Llama 3.1 Nemotron 51B and Ultra 253B, Llama 3.3 Nemotron Super 49B, DeciLM 7B",
    tools=("llama3",),
)


class LinearAttention(Module):
    """A matrix that replaces attention."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self.attn_output = Linear(config.hidden_size, config.hidden_size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.attn_output(x)


class Layer(DecoderLayer):
    """A layer of Llama that may lack its attention, its feed-forward block, or both."""

    def __init__(
        self, config: DecoderConfig, attn: llama.Attention | LinearAttention | None, ffn: SwiGLU | None
    ) -> None:
        self.mixer, self.block = attn, ffn
        if attn is not None:
            self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        if ffn is not None:
            self.ffn_norm = RMSNorm(config.hidden_size, config.eps)

    @property
    def attends(self) -> bool:
        return isinstance(self.mixer, llama.Attention)

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        if self.mixer is None:
            (x,) = output_rows(outputs, x)
        else:
            h, x = output_rows(outputs, self.mixer(self.attn_norm(x), *context), x)
            x = x + h
        return x if self.block is None else x + self.block(self.ffn_norm(x))


class Model(llama.Model):
    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        c = self.config
        heads = of_layers(file, f"{file.architecture}.attention.head_count", c.num_layers)
        return [self._layer(*sizes) for sizes in zip(heads, c.kv_heads, c.ffn_sizes, strict=True)]

    def _layer(self, heads: int, kv_heads: int, ffn_size: int) -> Layer:
        c = replace(self.config, kv_heads=(kv_heads,))
        attn: llama.Attention | LinearAttention | None = None
        if kv_heads:
            attn = llama.Attention(c)
        elif heads:
            attn = LinearAttention(c)
        return Layer(c, attn, SwiGLU(c.hidden_size, ffn_size) if ffn_size else None)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c, rope = self.config, self.rope()
        return [Causal(KVShape(heads, c.head_size, c.value_size, rope)) for heads in c.kv_heads if heads]

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope, x, remaining = self.positions(inputs), self.embed(inputs), iter(caches)
        for layer in self.blk:
            assert isinstance(layer, Layer)
            context = (rope, next(remaining)) if layer.attends else ()
            x = layer(x, *context, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
