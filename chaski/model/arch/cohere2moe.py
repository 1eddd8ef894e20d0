"""Command A with experts (Cohere 2026): blocks side by side, windows with a rope, and shared experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import (
    DecoderLayer,
    LayerNorm,
    MoEWithSharedExpert,
    RMSNorm,
    RouterConfig,
    SwiGLU,
    output_rows,
)
from chaski.model import windowed
from chaski.model.arch import deepseek, llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.nextn import trunk_config
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "cohere2moe",
    "Command A with experts",
    tools=("cohere",),
    thinking=("cohere",),
    reads=("attention.sliding_window", "leading_dense_block_count", "logit_scale", "nextn_predict_layers"),
)

Norm = RMSNorm | LayerNorm


class Layer(DecoderLayer):
    """Two blocks that read the same norm of the states and add their outputs to them."""

    def __init__(self, norm: Norm, attn: windowed.Attention, ffn: llama.FeedForward) -> None:
        self.attn_norm = norm
        self.attn = attn
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h = self.attn_norm(x)
        attended, h, x = output_rows(outputs, self.attn(h, *context), h, x)
        return x + attended + self.ffn(h)


class AveragedExperts(MoEWithSharedExpert):
    """The mean of the sum of the chosen experts and of the shared ones."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 0.5


class Model(deepseek.Model, WindowedModel):
    sees_all = 0

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._logit_factor = file.get(f"{file.architecture}.logit_scale", float, 0.0) or 1.0
        super().__init__(file, projector)

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        self._has_rms = f"{file.architecture}.attention.layer_norm_rms_epsilon" in file.metadata
        eps = "layer_norm_rms_epsilon" if self._has_rms else "layer_norm_epsilon"
        return trunk_config(file, DecoderConfig.read(file, eps))

    def norm(self, config: DecoderConfig) -> Norm:
        size, eps = config.hidden_size, config.eps
        return RMSNorm(size, eps) if self._has_rms else LayerNorm(size, eps, bias=False)

    def layer(self, file: GGUFFile) -> Layer:
        return Layer(self.norm(self.config), windowed.Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        block = super().ffn(file)
        return (
            AveragedExperts(block.experts, block.shared) if isinstance(block, MoEWithSharedExpert) else block
        )

    def router(self, file: GGUFFile) -> RouterConfig:
        router = read_router(file, Gating.SIGMOID, normalized=False)
        if router.gating is Gating.SOFTMAX:  # of the chosen experts, so that the weights sum to 1 in any case
            return replace(router, gating=Gating.CHOSEN_SOFTMAX, normalized=False)
        return router

    def _has_rope(self, layer: int) -> bool:
        if self.has_window(layer) or layer >= self.config.num_layers:
            return True
        return isinstance(self.blk[layer].ffn, SwiGLU)

    def layer_kind(self, index: int) -> Causal:
        rope = self.rope() if self._has_rope(index) else NO_ROPE
        return Causal(
            self.config.kv_shape(rope), AttentionSpan(self.window if self.has_window(index) else None)
        )

    def positions_of(self, inputs: Inputs, index: int) -> Tensor | None:
        return inputs.rope_table(self.rope()) if self._has_rope(index) else None

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = inputs.rope_table(self.rope())
        x = self.embed(inputs)
        for index, (layer, cache) in enumerate(zip(self.blk, caches, strict=True)):
            own = rope if self._has_rope(index) else None
            x = layer(x, own, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        x = super().head(x, softcap)
        return x if self.config.pooling is not None else x * self._logit_factor
