"""Models of the llama architecture with tied embeddings: Llama 3.2, SmolLM, Llama 3.1 (really untied)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "Llama"]


@dataclass(frozen=True, slots=True)
class Llama:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rope_theta: float
    context_length: int
    vocabulary: Vocabulary
    rope_factor: float = 0.0  # Llama 3.1 frequency scaling; 0 for none
    architecture: str = "llama"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def history_elements(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def attention_products(self) -> int:
        return 2 * self.num_layers * self.num_heads * self.head_dim

    def metadata(self) -> Metadata:
        return {
            "context_length": self.context_length,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.ffn_size,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": self.rope_theta,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "vocab_size": self.vocabulary.size,
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        ones = np.ones(self.hidden_size, np.float32)
        yield "output_norm.weight", ones
        for layer in range(self.num_layers):
            yield f"blk.{layer}.attn_norm.weight", ones
            yield f"blk.{layer}.ffn_norm.weight", ones
        if self.rope_factor:
            yield "rope_freqs.weight", self._rope_factors()

    def _rope_factors(self) -> NDArray[np.float32]:
        """Return the divisor of each RoPE frequency (Llama 3.1: factors 1 to 4, trained on 8192)."""
        low, high, trained = 1.0, 4.0, 8192
        wavelength = 2 * np.pi * self.rope_theta ** (np.arange(0, self.head_dim, 2) / self.head_dim)
        smooth = np.clip((trained / wavelength - low) / (high - low), 0.0, 1.0)
        return (1 / ((1 - smooth) / self.rope_factor + smooth)).astype(np.float32)

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


_LLAMA_3 = Vocabulary("llama-bpe", 128256, 256, 280147)
SHAPES = {
    "llama-3.2-1b": Llama(16, 2048, 32, 8, 64, 8192, 5e5, 131072, _LLAMA_3, rope_factor=32.0),
    "llama-3.2-3b": Llama(28, 3072, 24, 8, 128, 8192, 5e5, 131072, _LLAMA_3, rope_factor=32.0),
    "llama-3.1-8b": Llama(32, 4096, 32, 8, 128, 14336, 5e5, 131072, _LLAMA_3, rope_factor=8.0),
    # The layers of SmolLM with the vocabulary of Llama 3: a draft for the two above.
    "draft-180m": Llama(30, 576, 9, 3, 64, 1536, 5e5, 131072, _LLAMA_3),
    # No real model has this shape: it serves to test that a benchmark runs.
    "llama-tiny": Llama(2, 256, 4, 2, 64, 512, 5e5, 131072, Vocabulary("llama-bpe", 1024, 256, 512)),
    "smollm-135m": Llama(30, 576, 9, 3, 64, 1536, 1e4, 2048, Vocabulary("gpt-2", 49152, 17, 48900)),
}
