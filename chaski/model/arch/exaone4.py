"""EXAONE 4 (LG AI Research 2025): norms after the blocks; with windows, only layers that have one rotate."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import PostNormLayer, attention
from chaski.model.arch import qwen3
from chaski.model.architecture import Architecture
from chaski.model.nextn import AttendingBlocks
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel, rotated

ARCHITECTURE = Architecture(
    "exaone4",
    "EXAONE 4",
    tools=("hermes",),
    thinking=("hermes",),
    reads=("attention.sliding_window", "nextn_predict_layers"),
)


class Attention(qwen3.Attention):
    """Attention with a norm of each head of queries and keys, for layers that may have no rope."""

    def __call__(self, x: Tensor, rope: Tensor | None, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size))
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        q, k = rotated(q, rope), rotated(k, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(WindowedModel, AttendingBlocks):
    """EXAONE 4. Blocks for multi-token prediction are like the first layers."""

    def nextn_layer(self, file: GGUFFile, index: int) -> PostNormLayer:
        """Return the layer of a block; see `NextnModel`."""
        return self.layer(file)

    def has_window(self, index: int) -> bool:
        return super().has_window(index % self.config.num_layers)

    def layer(self, file: GGUFFile) -> PostNormLayer:
        c = self.config
        return PostNormLayer(c.hidden_size, c.eps, Attention(c), self.ffn(file))

    def rope(self) -> Rope:
        return replace(super().rope(), neox=True)

    def far_rope(self) -> Rope:
        return self.rope() if self.window is None else NO_ROPE
