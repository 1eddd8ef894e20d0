"""Mistral Small 3 and Ministral 3, text (Mistral AI 2025): Llama whose queries grow with their position."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import RopeFactors, attention
from chaski.model.arch import llama
from chaski.model.arch.mistral3.vision import Vision
from chaski.model.config import DecoderConfig, refuse
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs


class Attention(llama.Attention):
    """Llama attention with a separate rope table for queries, which can scale them as it rotates them."""

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache, q_rope: Tensor | None = None) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), q_rope or rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(Decoder):
    vision: Vision | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        self.blk = [
            llama.Layer(config, Attention(config), llama.feed_forward(file, config))
            for _ in range(config.num_layers)
        ]
        self.rope_freqs = RopeFactors(config.rope.dims)
        if projector is not None or "mistral3.vision.block_count" in file.metadata:
            self.vision = Vision(projector or file, config.hidden_size, config.eps)
        self._beta = file.get("mistral3.attention.temperature_scale", float, 0.0)
        trained = file.get("mistral3.rope.scaling.original_context_length", int, 0) or config.context_length
        self._length = trained
        refuse(file, "mistral3.attention.temperature_length", trained, "steps of another length")
        if self._beta and config.rope.dims != config.head_size:
            raise UnsupportedError(
                f"{file.path}: attention.temperature_scale is not supported with partly rotated heads"
            )

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(c.kv_shape(self._rope()))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = q_rope = ops.rope_table(inputs.positions, self._rope())
        if self._beta:
            q_rope = ops.scale_rows(rope, ops.position_scale(inputs.positions, self._length, self._beta))
        x = inputs.with_images(self.token_embd(inputs.tokens))
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, q_rope, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))

    def _rope(self) -> Rope:
        return self.config.rope.rope(factors=self.rope_freqs.weight.array)
