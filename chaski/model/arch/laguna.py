"""Laguna (Poolside 2026): layers with different numbers of heads, gates of heads, and experts."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, Linear, RouterConfig, attention
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, of_layers
from chaski.model.experts import read_router
from chaski.model.gates import gated
from chaski.model.rope import RopeConfig
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "laguna",
    "Laguna XS, S and M",
    tools=("laguna",),
    thinking=("laguna",),
    reads=(
        "attention.sliding_window",
        "leading_dense_block_count",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    ),
)


class Attention(qwen3.Attention):
    """Attention with a norm of each head, whose result is multiplied by the softplus of gates.

    gates: their number, one for each head or one for each element.
    """

    def __init__(self, config: DecoderConfig, gates: int) -> None:
        super().__init__(config)
        self.attn_gate = Linear(config.hidden_size, gates)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size))
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        k, q = ops.rope(k, rope), ops.rope(q, rope)
        attended = attention(q, k, v, cache, scale=c.head_size**-0.5)
        return self.attn_output(gated(attended, self.gates(x), c.num_heads))

    def gates(self, x: Tensor) -> Tensor:
        return ops.softplus(self.attn_gate(x))


class Model(deepseek.Model, WindowedModel):
    sees_all = 0

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        prefix = f"{file.architecture}.rope"
        self._near_base = file.get(f"{prefix}.freq_base_swa", float, 0.0)
        self._near_dims = file.get(f"{prefix}.dimension_count_swa", int, 0)
        super().__init__(file, projector)

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        arch = file.architecture
        self._heads = of_layers(file, f"{arch}.attention.head_count", file.get(f"{arch}.block_count", int))
        return DecoderConfig.read(file, num_heads=self._heads[0])

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        layers = super().layers(file)
        for index, layer in enumerate(layers):
            layer.attn = self._attention(file, index)
        return layers

    def _attention(self, file: GGUFFile, layer: int) -> Attention:
        config = replace(self.config, num_heads=self._heads[layer])
        gate = file.tensors.get(f"blk.{layer}.attn_gate.weight")
        is_per_head = gate is None or gate.shape[:1] in ((), (config.num_heads,))
        return Attention(config, config.num_heads * (1 if is_per_head else config.value_size))

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, self._attention(file, 0), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True)

    def near_rope(self) -> Rope:
        c = self.config.rope
        return RopeConfig(self._near_dims or c.dims, self._near_base or c.base).rope(neox=True)

    def far_rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
