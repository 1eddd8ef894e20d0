"""Gemma 3's text models: five layers with a window, then one with full attention.

Sizes come from `config.json` of google/gemma-3-1b-it and google/gemma-3-4b-it on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "Gemma3"]

_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


@dataclass(frozen=True, slots=True)
class Gemma3:
    num_layers: int
    real_layers: int
    real_vocabulary: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_size: int
    window: int
    context_length: int
    rope_factor: float = 0.0
    """The linear scaling of layers with full attention; 0 for none."""
    head_dim: int = 256
    architecture: str = "gemma3"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def vocabulary(self) -> Vocabulary:
        size = self.real_vocabulary * self.num_layers // self.real_layers // 32 * 32
        return Vocabulary("llama-bpe", size, 256, size)

    @property
    def history_elements(self) -> int:
        """Count a window as full attention, as for a prompt shorter than the window."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def attention_products(self) -> int:
        return 2 * self.num_layers * self.num_heads * self.head_dim

    def metadata(self) -> Metadata:
        scaling: Metadata = {"rope.scaling.type": "linear", "rope.scaling.factor": self.rope_factor}
        return {
            "context_length": self.context_length,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.ffn_size,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": self.window,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            **(scaling if self.rope_factor else {}),
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        hidden, head = np.ones(self.hidden_size, np.float32), np.ones(self.head_dim, np.float32)
        yield "output_norm.weight", hidden
        for layer in range(self.num_layers):
            yield from ((f"blk.{layer}.{name}.weight", hidden) for name in _NORMS)
            yield f"blk.{layer}.attn_q_norm.weight", head
            yield f"blk.{layer}.attn_k_norm.weight", head

    def matrices(self) -> Iterator[Matrix]:
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        hidden, ffn = self.hidden_size, self.ffn_size
        yield Matrix("token_embd", self.vocabulary.size, hidden, is_head=True)
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            yield Matrix(f"{block}.attn_q", heads, hidden, layer)
            yield Matrix(f"{block}.attn_k", kv_heads, hidden, layer)
            yield Matrix(f"{block}.attn_v", kv_heads, hidden, layer)
            yield Matrix(f"{block}.attn_output", hidden, heads, layer)
            yield Matrix(f"{block}.ffn_gate", ffn, hidden, layer)
            yield Matrix(f"{block}.ffn_up", ffn, hidden, layer)
            yield Matrix(f"{block}.ffn_down", hidden, ffn, layer)


SHAPES = {
    "gemma-3-1b": Gemma3(26, 26, 262144, 1152, 4, 1, 6912, 512, 32768),
    "gemma-3-4b": Gemma3(28, 34, 262208, 2560, 8, 4, 10240, 1024, 131072, rope_factor=8.0),
}
