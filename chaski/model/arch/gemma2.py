"""Gemma 2 (Gemma Team 2024): every other layer attends within a window; scores and logits are softcapped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, KVShape, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import SandwichLayer, SwiGLU, attention
from chaski.model.arch import llama
from chaski.model.architecture import GELU, Architecture
from chaski.model.config import DecoderConfig, sliding_layers
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "gemma2",
    "Gemma 2",
    reads=("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    fixed={"hidden_activation": GELU},
)


_PERIOD = 2
_LAYERS_OF_27B = 46


class Attention(llama.Attention):
    def __init__(self, config: DecoderConfig, softcap: float) -> None:
        super().__init__(config)
        is_27b = config.num_layers == _LAYERS_OF_27B  # files do not store the scale of queries
        size = config.hidden_size // config.num_heads if is_27b else config.head_size
        self._attend = partial(attention, scale=size**-0.5, softcap=softcap)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(self._attend(q, k, v, cache))


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        window = file.get("gemma2.attention.sliding_window", int, 4096)
        softcap = file.get("gemma2.attn_logit_softcapping", float, 50.0)
        size, eps = config.hidden_size, config.eps
        self.blk = [
            SandwichLayer(
                size,
                eps,
                Attention(config, softcap),
                SwiGLU(size, config.ffn_size, ops.geglu),
                window if is_near else None,
            )
            for is_near in sliding_layers(file, config.num_layers, _PERIOD)
        ]
        self._softcap = file.get("gemma2.final_logit_softcapping", float, 30.0)
        self._rope = config.rope.rope(neox=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        shape = KVShape(self.config.num_kv_heads, self.config.head_size, self.config.value_size, self._rope)
        return [Causal(shape, AttentionSpan(layer.window)) for layer in self.blk]

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = ops.rope_table(inputs.positions, self._rope)
        x = self.token_embd(inputs.tokens) * self.config.hidden_size**0.5
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, rope, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x), self._softcap)
