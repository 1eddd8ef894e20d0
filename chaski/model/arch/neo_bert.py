"""NeoBERT (Le Breton et al. 2025): an encoder with rope, SwiGLU and norms before both blocks."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Embedding, FusedGLU, Linear, Module, RMSNorm, attention
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.classifier import Classifier
from chaski.model.config import DecoderConfig
from chaski.model.dense import DenseLayers
from chaski.model.input import Inputs
from chaski.model.pooling import Pooling

ARCHITECTURE = Architecture(
    "neo-bert",
    "NeoBERT",
    notes="The rows of queries, keys and values alternate from head to head, as in the release; llama.cpp "
    "takes them for three matrices in sequence, and makes other vectors.",
)


class Attention(Module):
    """Bidirectional attention. The rows of `attn_qkv` are those of one head after the other."""

    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self.attn_qkv = Linear(config.hidden_size, 3 * config.num_heads * config.head_size)
        self.attn_output = Linear(config.num_heads * config.head_size, config.hidden_size)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        heads, size = self._config.num_heads, self._config.head_size
        qkv = self.attn_qkv(x).reshape(heads, 3 * size)
        q, k, v = (ops.slice(qkv, part * size, size) for part in range(3))
        q, k = ops.rope(q, rope), ops.rope(k, rope)
        return self.attn_output(attention(q, k, v, cache, scale=size**-0.5))


class Encoder(Module):
    def __init__(self, config: DecoderConfig) -> None:
        self.output_norm = RMSNorm(config.hidden_size, config.eps)


class Model(Module):
    def __init__(self, file: GGUFFile) -> None:
        self.config = config = DecoderConfig.read(file, is_causal=False, pooling=Pooling.FIRST)
        self.context = config.context_length
        self.token_embd = Embedding(config.vocab_size, config.hidden_size)
        self.blk = [self.layer() for _ in range(config.num_layers)]
        self.enc = Encoder(config)
        self.dense = DenseLayers(file, config.hidden_size)
        if config.pooling is Pooling.RANK:
            self.cls = Classifier(config)
        self._rope = config.rope.rope()

    def layer(self) -> llama.Layer:
        c = self.config
        return llama.Layer(c, Attention(c), FusedGLU(c.hidden_size, c.ffn_size))

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(KVShape(c.num_heads, c.head_size, c.head_size, self._rope))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._rope)
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, outputs=inputs.outputs if layer is self.blk[-1] else None)
        x = self.enc.output_norm(x)
        return self.cls(x) if self.config.pooling is Pooling.RANK else self.dense(x)
