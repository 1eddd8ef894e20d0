"""gpt-oss: experts in all layers, sinks, biases, and a window in every other layer.

Sizes come from `config.json` of openai/gpt-oss-20b on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "GptOss"]

_REAL_VOCABULARY = 201088


@dataclass(frozen=True, slots=True)
class GptOss:
    num_layers: int
    real_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int
    num_experts: int
    num_used: int
    expert_size: int
    architecture: str = "gpt-oss"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def vocabulary(self) -> Vocabulary:
        size = _REAL_VOCABULARY * self.num_layers // self.real_layers // 32 * 32
        return Vocabulary("gpt-4o", size, 256, size)

    @property
    def history_elements(self) -> int:
        """Count a window as full attention, as for a prompt shorter than the window."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def attention_products(self) -> int:
        return 2 * self.num_layers * self.num_heads * self.head_dim

    def metadata(self) -> Metadata:
        return {
            "context_length": 131072,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.expert_size,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.sliding_window": self.window,
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
            "expert_count": self.num_experts,
            "expert_used_count": self.num_used,
            "expert_feed_forward_length": self.expert_size,
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        ones = np.ones(self.hidden_size, np.float32)
        yield "output_norm.weight", ones
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            yield f"{block}.attn_norm.weight", ones
            yield f"{block}.post_attention_norm.weight", ones
            yield f"{block}.attn_sinks.weight", rng.standard_normal(self.num_heads, np.float32)
            router = rng.standard_normal((self.num_experts, self.hidden_size), np.float32)
            yield f"{block}.ffn_gate_inp.weight", router / np.float32(self.hidden_size**0.5)
            yield f"{block}.ffn_gate_inp.bias", _bias((self.num_experts,), rng)
            for matrix in self._layer(layer):
                yield f"{matrix.name}.bias", _bias(matrix.shape[:-1], rng)

    def matrices(self) -> Iterator[Matrix]:
        hidden, size = self.hidden_size, self.vocabulary.size
        yield Matrix("token_embd", size, hidden, share=0.0)
        yield Matrix("output", size, hidden, is_head=True)
        for layer in range(self.num_layers):
            yield from self._layer(layer)

    def _layer(self, layer: int) -> Iterator[Matrix]:
        block, hidden, ffn = f"blk.{layer}", self.hidden_size, self.expert_size
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield Matrix(f"{block}.attn_q", heads, hidden, layer)
        yield Matrix(f"{block}.attn_k", kv_heads, hidden, layer)
        yield Matrix(f"{block}.attn_v", kv_heads, hidden, layer)
        yield Matrix(f"{block}.attn_output", hidden, heads, layer)
        count, share = self.num_experts, self.num_used / self.num_experts
        for name, rows, columns in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
            yield Matrix(f"{block}.ffn_{name}_exps", rows, columns, layer, count, share)


def _bias(
    shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return rng.standard_normal(shape, np.float32) * np.float32(0.02)


SHAPES = {"gpt-oss-20b": GptOss(4, 24, 2880, 64, 8, 64, 128, 32, 4, 2880)}
