"""GLM 4.7: a dense layer, then experts with a shared one.

Sizes come from `config.json` of zai-org/GLM-4.7 on Hugging Face. A layer has 160 experts, which alone would
exceed 2 GiB, so the shape has half of them. As in the real model, a token uses eight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "Glm4Moe"]


@dataclass(frozen=True, slots=True)
class Glm4Moe:
    num_layers: int = 2
    real_layers: int = 92
    hidden_size: int = 5120
    num_heads: int = 96
    num_kv_heads: int = 8
    head_dim: int = 128
    dense_size: int = 12288
    expert_size: int = 1536
    num_experts: int = 80
    num_used: int = 8
    num_dense: int = 1
    architecture: str = "glm4moe"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def vocabulary(self) -> Vocabulary:
        size = 151552 * self.num_layers // self.real_layers // 32 * 32
        return Vocabulary("llama-bpe", size, 256, size)

    @property
    def history_elements(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def attention_products(self) -> int:
        return 2 * self.num_layers * self.num_heads * self.head_dim

    def metadata(self) -> Metadata:
        return {
            "context_length": 202752,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.dense_size,
            "leading_dense_block_count": self.num_dense,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e6,
            "rope.dimension_count": self.head_dim // 2,
            "expert_count": self.num_experts,
            "expert_used_count": self.num_used,
            "expert_shared_count": 1,
            "expert_feed_forward_length": self.expert_size,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        ones = np.ones(self.hidden_size, np.float32)
        yield "output_norm.weight", ones
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            yield f"{block}.attn_norm.weight", ones
            yield f"{block}.post_attention_norm.weight", ones
            for name, heads in (("q", self.num_heads), ("k", self.num_kv_heads), ("v", self.num_kv_heads)):
                yield f"{block}.attn_{name}.bias", np.zeros(heads * self.head_dim, np.float32)
            yield f"{block}.attn_q_norm.weight", np.ones(self.head_dim, np.float32)
            yield f"{block}.attn_k_norm.weight", np.ones(self.head_dim, np.float32)
            if layer >= self.num_dense:
                router = rng.standard_normal((self.num_experts, self.hidden_size), np.float32)
                yield f"{block}.ffn_gate_inp.weight", router / np.float32(self.hidden_size**0.5)
                yield f"{block}.exp_probs_b.bias", np.zeros(self.num_experts, np.float32)

    def matrices(self) -> Iterator[Matrix]:
        hidden, size = self.hidden_size, self.vocabulary.size
        yield Matrix("token_embd", size, hidden, share=0.0)
        yield Matrix("output", size, hidden, is_head=True)
        for layer in range(self.num_layers):
            yield from self._layer(layer)

    def _layer(self, layer: int) -> Iterator[Matrix]:
        block, hidden, is_dense = f"blk.{layer}", self.hidden_size, layer < self.num_dense
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield Matrix(f"{block}.attn_q", heads, hidden, layer)
        yield Matrix(f"{block}.attn_k", kv_heads, hidden, layer)
        yield Matrix(f"{block}.attn_v", kv_heads, hidden, layer)
        yield Matrix(f"{block}.attn_output", hidden, heads, layer)
        ffn, own = (self.dense_size if is_dense else self.expert_size), self.expert_size
        suffix, share = ("" if is_dense else "_shexp"), self.num_used / self.num_experts
        for name in ("gate", "up"):
            yield Matrix(f"{block}.ffn_{name}{suffix}", ffn, hidden, layer)
        yield Matrix(f"{block}.ffn_down{suffix}", hidden, ffn, layer)
        if is_dense:
            return
        for name, rows, columns in (("gate", own, hidden), ("up", own, hidden), ("down", hidden, own)):
            yield Matrix(f"{block}.ffn_{name}_exps", rows, columns, layer, self.num_experts, share)


SHAPES = {"glm-4.7": Glm4Moe()}
