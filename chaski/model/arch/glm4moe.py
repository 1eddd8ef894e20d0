"""GLM 4.5 to 4.7 (Z.ai 2025): leading dense layers, experts chosen with a bias, and a shared expert."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RMSNorm, RouterConfig, attention
from chaski.model.arch import deepseek, llama
from chaski.model.arch.seed_oss import Layer
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.projectors import WITH_COORDINATES
from chaski.model.rope import read_axes

ARCHITECTURE = Architecture(
    "glm4moe",
    "GLM 4.5, 4.6 and 4.7, GLM-4.5V and 4.6V",
    tools=("glm-4.7",),
    thinking=("glm-4.7",),
    notes="Pictures, not videos, with a projector of GLM-4V.",
    reads=("leading_dense_block_count", "nextn_predict_layers"),
)


class Attention(llama.Attention):
    """Attention with a norm of each head of queries and keys if the file has one."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = RMSNorm(config.head_size, config.eps, optional=True)
        self.attn_k_norm = RMSNorm(config.head_size, config.eps, optional=True)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q(x).reshape(c.num_heads, c.head_size)
        k = self.attn_k(x).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        q = self.attn_q_norm(q) if self.attn_q_norm.weight.is_present else q
        k = self.attn_k_norm(k) if self.attn_k_norm.weight.is_present else k
        k, q = ops.rope(k, rope), ops.rope(q, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(deepseek.Model):
    """GLM 4.5. Without an encoder, a token's coordinates all equal its position."""

    projectors = WITH_COORDINATES

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        pairs = self.config.rope.dims // 2
        self._axes = None if self.vision is None else read_axes(file, pairs, [8, 12, 12])

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return Layer(self.config, Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True, has_bias=True)

    def rope(self) -> Rope:
        rope = self.config.rope.rope(neox=True)
        return rope if self._axes is None else replace(rope, axes=self._axes)
