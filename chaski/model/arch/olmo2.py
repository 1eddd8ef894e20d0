"""OLMo 2 and 3 (OLMo Team 2024, 2025): norms after the blocks; OLMo 3 has windows in three of four layers."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import PostNormLayer, RMSNorm, attention
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "olmo2",
    "OLMo 2 and 3",
    tools=("olmo3",),
    thinking=("olmo3-think",),
    notes="OLMo 3 scales the rope only in layers that see all tokens.",
    reads=("attention.sliding_window", "rope.freq_base_swa"),
)


class Attention(llama.Attention):
    """Attention with a norm over all heads of queries, and one of keys."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = RMSNorm(config.num_heads * config.head_size, config.eps)
        self.attn_k_norm = RMSNorm(config.num_kv_heads * config.head_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x)).reshape(c.num_heads, c.head_size)
        k = self.attn_k_norm(self.attn_k(x)).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        q, k = ops.rope(q, rope), ops.rope(k, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(WindowedModel):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._near_base = file.get(f"{file.architecture}.rope.freq_base_swa", float, 0.0)
        super().__init__(file, projector)

    def layer(self, file: GGUFFile) -> PostNormLayer:
        c = self.config
        return PostNormLayer(c.hidden_size, c.eps, Attention(c), self.ffn(file))

    def near_rope(self) -> Rope:
        c = self.config.rope
        return c.unscaled(self._near_base or c.base).rope(neox=True)

    def far_rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
