"""Chameleon (Meta 2024): Llama with a layer norm of each head, and image tokens in its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import DecoderLayer, HeadNorms, attention, output_rows
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture(
    "chameleon",
    "Chameleon 7B and 30B",
    notes="Text only: it reads no pictures, and never chooses the tokens of pictures.",
    reads=("swin_norm",),
)

_HEAD_EPS = 1e-5  # files do not store it
_IMAGE_TOKEN = "IMGIMG"
_NEVER = -1e30


class Attention(llama.Attention):
    """Attention with a layer norm of each head of queries and keys, before their rotation."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = HeadNorms(config.num_heads, config.head_size, _HEAD_EPS)
        self.attn_k_norm = HeadNorms(config.num_kv_heads, config.head_size, _HEAD_EPS)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x)).reshape(c.num_heads, c.head_size)
        k = self.attn_k_norm(self.attn_k(x)).reshape(c.num_kv_heads, c.head_size)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        q, k = ops.rope(q, rope), ops.rope(k, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class LateNormLayer(llama.Layer):
    """A layer that normalizes the outputs of its blocks instead of their inputs."""

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(x, *context), x)
        x = x + self.attn_norm(h)
        return x + self.ffn_norm(self.ffn(x))


class Model(llama.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        names = file.get("tokenizer.ggml.tokens", list[str], ())
        self._image_runs = _runs([token for token, name in enumerate(names) if name.startswith(_IMAGE_TOKEN)])
        super().__init__(file, projector)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        is_late = file.get(f"{file.architecture}.swin_norm", bool, False)
        kind = LateNormLayer if is_late else llama.Layer
        return kind(self.config, Attention(self.config), self.ffn(file))

    def head(self, x: Tensor, softcap: float = 0.0) -> Tensor:
        x = super().head(x, softcap)
        return x if self.config.pooling is not None else self._without_images(x)

    def _without_images(self, logits: Tensor) -> Tensor:
        """Return the logits with those of image tokens so low that no sampler chooses them."""
        for first, count in self._image_runs:
            low = ops.clamp(ops.slice(logits, first, count), low=_NEVER, high=_NEVER)
            after = first + count
            others = ((0, first), (after, self.config.vocab_size - after))
            kept = [(ops.slice(logits, *part), part[0], 1) for part in others if part[1]]
            logits = ops.concat([*kept, (low, first, 1)])
        return logits


def _runs(tokens: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as runs: the first number and the length of each."""
    numbers = np.array(tokens, np.int64)
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return tuple((int(part[0]), len(part)) for part in parts if len(part))
