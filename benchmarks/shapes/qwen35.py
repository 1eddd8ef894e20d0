"""Qwen 3.5, dense and with experts: three of four layers are gated delta nets.

Sizes come from `config.json` of Qwen/Qwen3.5-4B and Qwen/Qwen3.5-35B-A3B on Hugging Face. Separate shapes
include the block for multi-token prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "Qwen35"]

_REAL_VOCABULARY = 248320
_FULL_ATTENTION_INTERVAL = 4
_TAPS = 4


@dataclass(frozen=True, slots=True)
class Qwen35:
    """`ffn_size` is the size of the dense block, or of each expert and of the shared one."""

    num_layers: int
    real_layers: int
    hidden_size: int
    num_kv_heads: int
    ffn_size: int
    num_experts: int = 0
    num_used: int = 0
    is_tied: bool = True
    num_heads: int = 16
    head_dim: int = 256
    key_heads: int = 16
    value_heads: int = 32
    delta_size: int = 128
    """The size of the delta net's heads."""
    has_nextn: bool = False
    """True with the block for multi-token prediction after the last layer."""

    @property
    def architecture(self) -> str:
        return "qwen35moe" if self.num_experts else "qwen35"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def vocabulary(self) -> Vocabulary:
        size = _REAL_VOCABULARY * self.num_layers // self.real_layers
        return Vocabulary("qwen35", size, 256, size)

    @property
    def history_elements(self) -> int:
        """Count no states of delta nets, since they do not grow."""
        return 2 * self._num_attending * self.num_kv_heads * self.head_dim

    @property
    def attention_products(self) -> int:
        return 2 * self._num_attending * self.num_heads * self.head_dim

    @property
    def _num_attending(self) -> int:
        return self.num_layers // _FULL_ATTENTION_INTERVAL

    @property
    def _widths(self) -> tuple[int, int]:
        """Return the numbers of elements of all keys, and of all values, of a delta net."""
        return self.key_heads * self.delta_size, self.value_heads * self.delta_size

    def metadata(self) -> Metadata:
        rotated = self.head_dim // 4
        thirds = rotated // 2 // 3
        experts: Metadata = {
            "expert_count": self.num_experts,
            "expert_used_count": self.num_used,
            "expert_feed_forward_length": self.ffn_size,
            "expert_shared_feed_forward_length": self.ffn_size,
        }
        return {
            "context_length": 262144,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers + self.has_nextn,
            **({"nextn_predict_layers": 1} if self.has_nextn else {}),
            **(experts if self.num_experts else {"feed_forward_length": self.ffn_size}),
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": self.num_kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e7,
            "rope.dimension_count": rotated,
            "rope.dimension_sections": [rotated // 2 - 2 * thirds, thirds, thirds, 0],
            "ssm.conv_kernel": _TAPS,
            "ssm.state_size": self.delta_size,
            "ssm.group_count": self.key_heads,
            "ssm.time_step_rank": self.value_heads,
            "ssm.inner_size": self.value_heads * self.delta_size,
            "full_attention_interval": _FULL_ATTENTION_INTERVAL,
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        keys, values = self._widths
        ones = np.ones(self.hidden_size, np.float32)
        yield "output_norm.weight", ones
        for layer in range(self.num_layers + self.has_nextn):
            block = f"blk.{layer}"
            if layer == self.num_layers:
                for name in ("enorm", "hnorm", "shared_head_norm"):
                    yield f"{block}.nextn.{name}.weight", ones
            yield f"{block}.attn_norm.weight", ones
            yield f"{block}.post_attention_norm.weight", ones
            if self._attends(layer):
                yield f"{block}.attn_q_norm.weight", np.ones(self.head_dim, np.float32)
                yield f"{block}.attn_k_norm.weight", np.ones(self.head_dim, np.float32)
            else:
                filters = rng.standard_normal((2 * keys + values, _TAPS), np.float32)
                yield f"{block}.ssm_conv1d.weight", filters
                yield f"{block}.ssm_dt.bias", np.ones(self.value_heads, np.float32)
                yield f"{block}.ssm_a", -np.linspace(0.01, 1, self.value_heads, dtype=np.float32)
                yield f"{block}.ssm_norm.weight", np.ones(self.delta_size, np.float32)
            if self.num_experts:
                routers = rng.standard_normal((self.num_experts + 1, self.hidden_size), np.float32)
                routers /= self.hidden_size**0.5
                yield f"{block}.ffn_gate_inp.weight", routers[1:]
                yield f"{block}.ffn_gate_inp_shexp.weight", routers[0]

    def matrices(self) -> Iterator[Matrix]:
        hidden, size = self.hidden_size, self.vocabulary.size
        yield Matrix("token_embd", size, hidden, share=float(self.is_tied), is_head=self.is_tied)
        if not self.is_tied:
            yield Matrix("output", size, hidden, is_head=True)
        for layer in range(self.num_layers):
            yield from self._attention(layer) if self._attends(layer) else self._delta_net(layer)
            yield from self._ffn(layer)
        if self.has_nextn:
            yield Matrix(f"blk.{self.num_layers}.nextn.eh_proj", hidden, 2 * hidden, self.num_layers)
            for matrix in (*self._attention(self.num_layers), *self._ffn(self.num_layers)):
                is_stored = matrix.name.endswith(("attn_k", "attn_v"))
                yield replace(matrix, share=float(is_stored))

    def _attends(self, layer: int) -> bool:
        return layer == self.num_layers or (layer + 1) % _FULL_ATTENTION_INTERVAL == 0

    def _attention(self, layer: int) -> Iterator[Matrix]:
        block, hidden = f"blk.{layer}", self.hidden_size
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield Matrix(f"{block}.attn_q", 2 * heads, hidden, layer)  # a gate after each query
        yield Matrix(f"{block}.attn_k", kv_heads, hidden, layer)
        yield Matrix(f"{block}.attn_v", kv_heads, hidden, layer)
        yield Matrix(f"{block}.attn_output", hidden, heads, layer)

    def _delta_net(self, layer: int) -> Iterator[Matrix]:
        block, hidden = f"blk.{layer}", self.hidden_size
        keys, values = self._widths
        yield Matrix(f"{block}.attn_qkv", 2 * keys + values, hidden, layer)
        yield Matrix(f"{block}.attn_gate", values, hidden, layer)
        yield Matrix(f"{block}.ssm_alpha", self.value_heads, hidden, layer)
        yield Matrix(f"{block}.ssm_beta", self.value_heads, hidden, layer)
        yield Matrix(f"{block}.ssm_out", hidden, values, layer)

    def _ffn(self, layer: int) -> Iterator[Matrix]:
        block, hidden, ffn = f"blk.{layer}", self.hidden_size, self.ffn_size
        dense = "_shexp" if self.num_experts else ""
        for name, rows, columns in (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn)):
            yield Matrix(f"{block}.ffn_{name}{dense}", rows, columns, layer)
            if self.num_experts:
                share = self.num_used / self.num_experts
                yield Matrix(f"{block}.ffn_{name}_exps", rows, columns, layer, self.num_experts, share)


SHAPES = {
    "qwen3.5-4b": Qwen35(24, 32, 2560, 4, 9216),
    "qwen3.5-4b-nextn": Qwen35(24, 32, 2560, 4, 9216, has_nextn=True),
    "qwen3.5-35b-a3b": Qwen35(4, 40, 2048, 2, 512, num_experts=256, num_used=8, is_tied=False),
}
