"""Nomic Embed (Nussbaum et al. 2024): BERT with rope and SwiGLU, whose tokens all see each other."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import Embedding, LayerNorm, Linear, Module, SwiGLU, attention
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs


class TokenTypes(Module):
    """Only the first is used: texts are not compared with others."""

    def __init__(self, count: int, size: int) -> None:
        self.weight = Weight((count, size), plain=True)


class Attention(Module):
    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self.attn_qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.attn_output = Linear(config.hidden_size, config.hidden_size)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        heads, size = self._config.num_heads, self._config.head_size
        qkv = self.attn_qkv(x)
        q, k, v = (ops.slice(qkv, i * heads * size, heads * size).reshape(heads, size) for i in range(3))
        return self.attn_output(attention(ops.rope(q, rope), ops.rope(k, rope), v, cache, scale=size**-0.5))


class Layer(Module):
    """Norms stand behind each sum."""

    def __init__(self, config: DecoderConfig) -> None:
        self.attn = Attention(config)
        self.attn_output_norm = LayerNorm(config.hidden_size, config.eps)
        self.ffn = SwiGLU(config.hidden_size, config.ffn_size)
        self.layer_output_norm = LayerNorm(config.hidden_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        x = self.attn_output_norm(x + self.attn(x, rope, cache))
        return self.layer_output_norm(x + self.ffn(x))


class Model(Module):
    def __init__(self, file: GGUFFile) -> None:
        self.config = config = DecoderConfig.read(file, eps="layer_norm_epsilon")
        self.context = config.context_length
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.token_types = TokenTypes(file.get("tokenizer.ggml.token_type_count", int, 2), config.hidden_size)
        self.token_embd_norm = LayerNorm(config.hidden_size, config.eps)
        self.blk = [Layer(config) for _ in range(config.num_layers)]
        self._rope = config.rope.rope(neox=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(KVShape(c.num_kv_heads, c.head_size, c.value_size, self._rope))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._rope)
        x = ops.add_vector(self.token_embd(inputs.tokens), self.token_types.weight)
        x = self.token_embd_norm(x)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache)
        return x.rows(inputs.outputs)
