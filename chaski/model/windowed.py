"""Decoders in which layers with a window and layers that see all tokens have different ropes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import DecoderLayer, attention
from chaski.model.arch import llama
from chaski.model.config import sliding_layers
from chaski.model.input import Inputs

__all__ = ["Attention", "WindowedModel", "rotated"]


def rotated(x: Tensor, rope: Tensor | None) -> Tensor:
    """Return queries or keys (n, heads, size), rotated unless their layer has no rope."""
    return x if rope is None else ops.rope(x, rope)


def _table(inputs: Inputs, rope: Rope) -> Tensor | None:
    return inputs.rope_table(rope) if len(rope.frequencies) else None


class Attention(llama.Attention):
    """Llama's attention for layers that may have no rope."""

    def __call__(self, x: Tensor, rope: Tensor | None, cache: LayerCache) -> Tensor:
        c = self._config
        q = rotated(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = rotated(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class WindowedModel(llama.Model):
    """Llama in which layers may have a window.

    period: one of these many layers sees all tokens, unless the file defines the layers; `sees_all` is its
    index among them.
    window: the tokens that a layer with a window sees, None in files without windows.
    """

    period = 4
    sees_all = -1

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self.window = file.get(f"{file.architecture}.attention.sliding_window", int, 0) or None
        super().__init__(file, projector)

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        layers, blocks = self.config.num_layers, file.get(f"{file.architecture}.block_count", int)
        is_near: tuple[bool, ...] = ()
        if self.window is not None:
            listed = file.metadata.get(f"{file.architecture}.attention.sliding_window_pattern")
            count = layers if isinstance(listed, np.ndarray) and len(listed) == layers else blocks
            is_near = sliding_layers(file, count, self.period, sees_all=self.sees_all)
        # A block that the file does not list sees all tokens.
        self._has_window = (*is_near, *[False] * (blocks - len(is_near)))
        self.is_near = self._has_window[:layers]
        return [self.layer_of(file, is_near) for is_near in self.is_near]

    def layer_of(self, file: GGUFFile, is_near: bool) -> DecoderLayer:
        """Return a layer, `is_near` if it has a window."""
        return self.layer(file)

    def near_rope(self) -> Rope:
        """Return the rope of layers with a window."""
        return self.rope()

    def far_rope(self) -> Rope:
        """Return the rope of layers that see all tokens."""
        return self.rope()

    def has_window(self, index: int) -> bool:
        """Return whether a layer, or a block after the layers, has a window."""
        return self._has_window[index]

    def layer_kind(self, index: int) -> Causal:
        if self.has_window(index):
            return Causal(self.config.kv_shape(self.near_rope()), AttentionSpan(self.window))
        return Causal(self.config.kv_shape(self.far_rope()))

    def positions_of(self, inputs: Inputs, index: int) -> Any:
        return _table(inputs, self.near_rope() if self.has_window(index) else self.far_rope())

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        near, far = _table(inputs, self.near_rope()), _table(inputs, self.far_rope())
        x = self.embed(inputs)
        for layer, is_near, cache in zip(self.blk, self.is_near, caches, strict=True):
            x = layer(x, near if is_near else far, cache, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
