"""DeepSeek V2 Lite and V3: latent attention, a dense layer, then experts with shared ones.

Sizes come from `config.json` of deepseek-ai/DeepSeek-V2-Lite and deepseek-ai/DeepSeek-V3 on Hugging Face. A
layer of V3 has 256 experts, which alone would exceed 2 GiB, so its shape has fewer experts. As in the real
model, a token uses eight of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "DeepSeek2"]


@dataclass(frozen=True, slots=True)
class DeepSeek2:
    """`query_rank` is 0 for one matrix of queries. With `groups`, sigmoid and a bias choose experts."""

    num_layers: int
    real_layers: int
    real_vocabulary: int
    hidden_size: int
    num_heads: int
    query_rank: int
    dense_size: int
    expert_size: int
    num_experts: int
    num_used: int
    num_shared: int
    groups: int = 0
    used_groups: int = 0
    rank: int = 512
    rope: int = 64
    plain: int = 128
    value: int = 128
    num_dense: int = 1
    architecture: str = "deepseek2"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads

    @property
    def vocabulary(self) -> Vocabulary:
        size = self.real_vocabulary * self.num_layers // self.real_layers // 32 * 32
        return Vocabulary("llama-bpe", size, 256, size)

    @property
    def history_elements(self) -> int:
        return self.num_layers * (self.rank + self.rope)

    @property
    def attention_products(self) -> int:
        return self.num_layers * self.num_heads * (2 * self.rank + self.rope)

    def metadata(self) -> Metadata:
        grouped: Metadata = {
            "expert_group_count": self.groups,
            "expert_group_used_count": self.used_groups,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        }
        return {
            "context_length": 163840,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.dense_size,
            "leading_dense_block_count": self.num_dense,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": self.query_rank,
            "attention.kv_lora_rank": self.rank,
            "attention.key_length": self.rank + self.rope,
            "attention.value_length": self.rank,
            "attention.key_length_mla": self.plain + self.rope,
            "attention.value_length_mla": self.value,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": self.rope,
            "expert_count": self.num_experts,
            "expert_used_count": self.num_used,
            "expert_shared_count": self.num_shared,
            "expert_feed_forward_length": self.expert_size,
            **(grouped if self.groups else {"expert_gating_func": 1, "expert_weights_scale": 1.0}),
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        ones = np.ones(self.hidden_size, np.float32)
        yield "output_norm.weight", ones
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            yield f"{block}.attn_norm.weight", ones
            yield f"{block}.ffn_norm.weight", ones
            yield f"{block}.attn_kv_a_norm.weight", np.ones(self.rank, np.float32)
            if self.query_rank:
                yield f"{block}.attn_q_a_norm.weight", np.ones(self.query_rank, np.float32)
            if layer >= self.num_dense:
                router = rng.standard_normal((self.num_experts, self.hidden_size), np.float32)
                yield f"{block}.ffn_gate_inp.weight", router / np.float32(self.hidden_size**0.5)
                if self.groups:
                    yield f"{block}.exp_probs_b.bias", np.zeros(self.num_experts, np.float32)

    def matrices(self) -> Iterator[Matrix]:
        hidden, size = self.hidden_size, self.vocabulary.size
        yield Matrix("token_embd", size, hidden, share=0.0)
        yield Matrix("output", size, hidden, is_head=True)
        for layer in range(self.num_layers):
            yield from self._attention(layer)
            yield from self._ffn(layer)

    def _attention(self, layer: int) -> Iterator[Matrix]:
        block, hidden, heads = f"blk.{layer}", self.hidden_size, self.num_heads
        queries = heads * (self.plain + self.rope)
        if self.query_rank:
            yield Matrix(f"{block}.attn_q_a", self.query_rank, hidden, layer)
            yield Matrix(f"{block}.attn_q_b", queries, self.query_rank, layer)
        else:
            yield Matrix(f"{block}.attn_q", queries, hidden, layer)
        yield Matrix(f"{block}.attn_kv_a_mqa", self.rank + self.rope, hidden, layer)
        yield Matrix(f"{block}.attn_k_b", self.rank, self.plain, layer, heads)
        yield Matrix(f"{block}.attn_v_b", self.value, self.rank, layer, heads)
        yield Matrix(f"{block}.attn_output", hidden, heads * self.value, layer)

    def _ffn(self, layer: int) -> Iterator[Matrix]:
        block, hidden, is_dense = f"blk.{layer}", self.hidden_size, layer < self.num_dense
        ffn = self.dense_size if is_dense else self.num_shared * self.expert_size
        suffix, own = ("" if is_dense else "_shexp"), self.expert_size
        for name in ("gate", "up"):
            yield Matrix(f"{block}.ffn_{name}{suffix}", ffn, hidden, layer)
        yield Matrix(f"{block}.ffn_down{suffix}", hidden, ffn, layer)
        if is_dense:
            return
        count, share = self.num_experts, self.num_used / self.num_experts
        for name, rows, columns in (("gate", own, hidden), ("up", own, hidden), ("down", hidden, own)):
            yield Matrix(f"{block}.ffn_{name}_exps", rows, columns, layer, count, share)


SHAPES = {
    "deepseek-v2-lite": DeepSeek2(4, 27, 102400, 2048, 16, 0, 10944, 1408, 64, 6, 2),
    "deepseek-v3": DeepSeek2(2, 61, 129280, 7168, 128, 1536, 18432, 2048, 48, 8, 1, 8, 4),
}
