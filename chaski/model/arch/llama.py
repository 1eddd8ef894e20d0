"""Llama 1 to 3.2, Mistral, Mixtral and all that declares `llama` (Touvron et al. 2023; Llama Team 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import Linear, Module, MoE, MoEWithSharedExpert, RMSNorm, RopeFactors, SwiGLU, attention
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.projectors import read_vision

FeedForward = SwiGLU | MoE | MoEWithSharedExpert


@dataclass(frozen=True, slots=True)
class RopeTables:
    """The tables that rotate queries and keys. They differ where a model scales queries by their position."""

    q: Tensor
    k: Tensor


class Attention(Module):
    inline = True

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self.attn_q = Linear(config.hidden_size, config.num_heads * config.head_size)
        self.attn_k = Linear(config.hidden_size, config.num_kv_heads * config.head_size)
        self.attn_v = Linear(config.hidden_size, config.num_kv_heads * config.value_size)
        self.attn_output = Linear(config.num_heads * config.value_size, config.hidden_size)

    def __call__(self, x: Tensor, rope: RopeTables, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope.q)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope.k)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Layer(Module):
    def __init__(self, config: DecoderConfig, ffn: FeedForward) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = ffn

    def __call__(self, x: Tensor, rope: RopeTables, cache: LayerCache, outputs: Tensor | None) -> Tensor:
        h = self.attn(self.attn_norm(x), rope, cache)
        if outputs is not None:  # the last layer goes on with the rows that need logits only
            h, x = h.rows(outputs), x.rows(outputs)
        x = x + h
        return x + self.ffn(self.ffn_norm(x))


class Model(Decoder):
    """`vision` is an encoder of images in front of it, from a `projector` or the file itself (LLaVA)."""

    neox = False
    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        self.blk = [Layer(config, self.ffn(file)) for _ in range(config.num_layers)]
        self.rope_freqs = RopeFactors(config.rope.dims)
        self.vision = self.build_vision(file, projector)

    def ffn(self, file: GGUFFile) -> FeedForward:
        """The feed-forward block of a layer."""
        c = self.config
        if not file.get(f"{file.architecture}.expert_count", int, 0):
            return SwiGLU(c.hidden_size, c.ffn_size)
        hidden = file.get(f"{file.architecture}.expert_feed_forward_length", int, 0) or c.ffn_size
        return MoE(c.hidden_size, hidden, read_router(file, Gating.SOFTMAX, normalized=True))

    def build_vision(self, file: GGUFFile, projector: GGUFFile | None) -> MultimodalProcessor | None:
        """Its encoder of images, if it has one."""
        return read_vision(file, projector, self.config.hidden_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(KVShape(c.num_kv_heads, c.head_size, c.value_size, self.rope()))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = self.rope_tables(inputs.positions)
        x = inputs.with_images(self.token_embd(inputs.tokens))
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, inputs.outputs if layer is self.blk[-1] else None)
        return self.head(x)

    def rope_tables(self, positions: Tensor) -> RopeTables:
        table = ops.rope_table(positions, self.rope())
        return RopeTables(table, table)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=self.neox, factors=self.rope_freqs.weight.array)
