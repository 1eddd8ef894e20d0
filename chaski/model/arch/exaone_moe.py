"""K-EXAONE (LG AI Research 2026): layers within a window rotate their keys, and all others see all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import Module, RouterConfig, attention
from chaski.model.arch import deepseek, llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import sliding_layers
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "exaone-moe",
    "K-EXAONE",
    tools=("hermes",),
    thinking=("hermes",),
    notes="Blocks for multi-token prediction are left out.",
    reads=(
        "attention.sliding_window",
        "leading_dense_block_count",
        "nextn_predict_layers",
    ),
)


class Attention(qwen3.Attention):
    """Attention with a norm of each head. `rope` is None in layers without positions."""

    def __call__(self, x: Tensor, rope: Tensor | None, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size))
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        if rope is not None:
            k, q = ops.rope(k, rope), ops.rope(q, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(deepseek.Model):
    """A model with layers of two kinds. `near` layers see a window, and the others, far ones, all tokens."""

    period: ClassVar[int] = 4
    """Every layer of this number sees all tokens if the file does not state otherwise."""

    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        self.near = sliding_layers(file, self.config.num_layers, self.period)
        self.window = file.get(f"{file.architecture}.attention.sliding_window", int)

    def layer(self, file: GGUFFile) -> Module:
        return llama.Layer(self.config, Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False)

    def near_rope(self) -> Rope | None:
        """Return the rope of the layers with a window; None if they have none."""
        c = self.config.rope
        return c.rope(neox=True, factors=self.rope_freqs.weight.array)

    def far_rope(self) -> Rope | None:
        """Return the rope of the layers that see all tokens; None if they have none."""
        return None

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        near = Causal(c.kv_shape(self.near_rope() or NO_ROPE), AttentionSpan(self.window))
        far = Causal(c.kv_shape(self.far_rope() or NO_ROPE))
        return [near if is_near else far for is_near in self.near]

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        near, far = (
            None if rope is None else inputs.rope_table(rope) for rope in (self.near_rope(), self.far_rope())
        )
        x = self.embed(inputs)
        for layer, is_near, cache in zip(self.blk, self.near, caches, strict=True):
            x = layer(x, near if is_near else far, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
