"""The text model: Llama layers, and between them layers that attend to the last image before a token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, Encoder, EncoderLayer, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import Embedding, Linear, Module, RMSNorm, RopeFactors, SwiGLU, attention
from chaski.model.arch import llama
from chaski.model.arch.mllama.vision import Vision
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs


class CrossAttention(Module):
    """Attention with queries from the text, and keys and values from the image; none are rotated."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self.cross_attn_q_proj = Linear(config.hidden_size, config.num_heads * config.head_size)
        self.cross_attn_q_norm = RMSNorm(config.head_size, config.eps)
        self.cross_attn_k_proj = Linear(config.hidden_size, config.num_kv_heads * config.head_size)
        self.cross_attn_k_norm = RMSNorm(config.head_size, config.eps)
        self.cross_attn_v_proj = Linear(config.hidden_size, config.num_kv_heads * config.value_size)
        self.cross_attn_o_proj = Linear(config.num_heads * config.value_size, config.hidden_size)

    def __call__(self, x: Tensor, image: EncoderLayer) -> Tensor:
        c = self._config
        q = self.cross_attn_q_norm(self.cross_attn_q_proj(x).reshape(c.num_heads, c.head_size))
        k = self.cross_attn_k_proj(image.encoded).reshape(c.num_kv_heads, c.head_size)
        v = self.cross_attn_v_proj(image.encoded).reshape(c.num_kv_heads, c.value_size)
        attended = attention(q, self.cross_attn_k_norm(k), v, image, scale=c.head_size**-0.5)
        return self.cross_attn_o_proj(attended)


class CrossLayer(Module):
    """A cross-attention layer with gated blocks. Tokens before the first image skip the layer."""

    def __init__(self, config: DecoderConfig) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = CrossAttention(config)
        self.cross_attn_attn_gate = Weight((1,), host=True)
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = SwiGLU(config.hidden_size, config.ffn_size)
        self.cross_attn_mlp_gate = Weight((1,), host=True)

    def __call__(self, x: Tensor, image: EncoderLayer) -> Tensor:
        y = x.rows(image.attending)
        y = y + self.attn(self.attn_norm(y), image) * _opened(self.cross_attn_attn_gate)
        y = y + self.ffn(self.ffn_norm(y)) * _opened(self.cross_attn_mlp_gate)
        return ops.scatter(x, y, image.attending)


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file)
        # Image tokens, of which the first is used, have embeddings but no logits.
        super().__init__(replace(config, vocab_size=_num_logits(file)))
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        crossing = {int(index) for index in file.get("mllama.attention.cross_attention_layers", list[int])}
        self.blk: list[llama.Layer | CrossLayer] = [
            CrossLayer(config)
            if index in crossing
            else llama.Layer(config, llama.Attention(config), SwiGLU(config.hidden_size, config.ffn_size))
            for index in range(config.num_layers)
        ]
        self.rope_freqs = RopeFactors(config.rope.dims)
        self.vision = Vision(file, config.hidden_size, token=self.config.vocab_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        causal = Causal(c.kv_shape(self._rope()))
        image = Encoder(c.kv_shape(), self.vision.shape.max_rows, c.hidden_size)
        return [image if isinstance(layer, CrossLayer) else causal for layer in self.blk]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._rope())
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            if isinstance(layer, CrossLayer):
                x = layer(x, cache)
            else:
                x = layer(x, rope, cache, outputs=inputs.outputs if layer is self.blk[-1] else None)
        return self.head(x.rows(inputs.outputs) if isinstance(self.blk[-1], CrossLayer) else x)

    def _rope(self) -> Rope:
        return self.config.rope.rope(factors=self.rope_freqs.weight.array)


def _opened(gate: Weight) -> float:
    assert gate.array is not None
    return math.tanh(float(gate.array[0]))


def _num_logits(file: GGUFFile) -> int:
    if "output.weight" not in file.tensors:
        raise ModelError(f"{file.path}: tensor output.weight is missing")
    return file.tensors["output.weight"].shape[0]
