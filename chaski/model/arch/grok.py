"""Grok 1 and 2 (xAI 2024, 2025): bounded scores, experts with a GELU, and a dense block next to them."""

from __future__ import annotations

import math
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating, router
from chaski.ml.nn import DecoderLayer, MoE, RMSNorm, RouterConfig, SwiGLU, attention, output_rows
from chaski.model.arch import llama
from chaski.model.architecture import GELU, Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "grok",
    "Grok 1 and 2",
    notes="Bounds the logits of the router as xAI's models do; llama.cpp does not.",
    reads=(
        "attention.output_scale",
        "attn_logit_softcapping",
        "embedding_scale",
        "final_logit_softcapping",
        "logit_scale",
        "router_logit_softcapping",
    ),
    fixed={"hidden_activation": GELU},
)

_BOUND = 30.0
_EMBEDDING_FACTOR, _LOGIT_FACTOR, _SCORE_FACTOR = 78.38367176906169, 3**-0.5, 128**-0.5


class Attention(llama.Attention):
    def __init__(self, config: DecoderConfig, scale: float, bound: float) -> None:
        super().__init__(config)
        self._scale, self._bound = scale, bound

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=self._scale, softcap=self._bound))


class Experts(MoE):
    """Experts chosen by bounded logits."""

    def __init__(self, size: int, hidden: int, config: RouterConfig, bound: float) -> None:
        super().__init__(size, hidden, config, ops.geglu)
        self._config, self._bound = config, bound

    def routes(self, x: Tensor) -> Tensor:
        c, logits = self._config, self.ffn_gate_inp(x)
        logits = ops.softcap(logits, cap=self._bound) if self._bound else logits
        return router(logits, c.num_used, c.gating, normalized=c.normalized, scale=c.scale)


class Layer(DecoderLayer):
    """`dense` is a block next to the experts, or None. `last_norm`: the attribute of the norm after both."""

    def __init__(
        self, config: DecoderConfig, attn: Attention, experts: Experts, dense: SwiGLU | None, last_norm: str
    ) -> None:
        size, eps = config.hidden_size, config.eps
        self.attn_norm = RMSNorm(size, eps)
        self.attn = attn
        self.attn_output_norm = RMSNorm(size, eps)
        self.ffn_norm = RMSNorm(size, eps)
        self.experts = experts
        if dense is not None:
            self.dense = dense
        self._last_norm = last_norm
        setattr(self, last_norm, RMSNorm(size, eps))

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + self.attn_output_norm(h)
        h = self.ffn_norm(x)
        y = self.experts(h)
        dense: SwiGLU | None = getattr(self, "dense", None)
        if dense is not None:
            y = (dense(h) + y) * math.sqrt(0.5)
        norm: RMSNorm = getattr(self, self._last_norm)
        return x + norm(y)


class Model(llama.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        arch = file.architecture
        self._embedding_factor = file.get(f"{arch}.embedding_scale", float, _EMBEDDING_FACTOR)
        self._logit_factor = file.get(f"{arch}.logit_scale", float, _LOGIT_FACTOR)
        self._logit_bound = file.get(f"{arch}.final_logit_softcapping", float, 0.0)
        super().__init__(file, projector)

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        return [self._layer(file, f"blk.{index}.") for index in range(self.config.num_layers)]

    def _layer(self, file: GGUFFile, prefix: str) -> Layer:
        c, arch = self.config, file.architecture
        hidden = file.get(f"{arch}.expert_feed_forward_length", int, 0) or c.ffn_size
        scale = file.get(f"{arch}.attention.output_scale", float, _SCORE_FACTOR)
        attn = Attention(c, scale, file.get(f"{arch}.attn_logit_softcapping", float, _BOUND))
        bound = file.get(f"{arch}.router_logit_softcapping", float, _BOUND)
        routing = read_router(file, Gating.SOFTMAX, normalized=True)
        has_dense = f"{prefix}ffn_up.weight" in file.tensors
        dense = SwiGLU(c.hidden_size, c.ffn_size, ops.geglu) if has_dense else None
        is_old = f"{prefix}layer_output_norm.weight" in file.tensors
        last = "layer_output_norm" if is_old else "post_ffw_norm"
        return Layer(c, attn, Experts(c.hidden_size, hidden, routing, bound), dense, last)

    def embed(self, inputs: Inputs) -> Tensor:
        return super().embed(inputs) * self._embedding_factor

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        logits = super().head(x) * self._logit_factor
        return ops.softcap(logits, cap=self._logit_bound) if self._logit_bound else logits
