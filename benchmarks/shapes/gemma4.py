"""Gemma 4's text models: windows with smaller heads, and embeddings per layer or experts.

Sizes come from `config.json` of google/gemma-4-E4B-it and google/gemma-4-26B-A4B-it on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "Gemma4"]

_REAL_VOCABULARY = 262144
_NOT_TURNED = 1e30  # the divisor of frequencies whose pairs are not rotated


@dataclass(frozen=True, slots=True)
class Gemma4:
    """`full`: the layers with full attention. The last `num_shared` layers read earlier keys and values."""

    num_layers: int
    real_layers: int
    full: tuple[int, ...]
    hidden_size: int
    num_heads: int
    near_kv_heads: int
    full_kv_heads: int
    ffn_size: int
    window: int
    num_shared: int = 0
    per_layer: int = 0
    """Elements of a token's embedding for each layer."""
    num_experts: int = 0
    num_used: int = 0
    expert_size: int = 0
    has_full_values: bool = True
    """False if layers with full attention use their keys as values."""
    near_dim: int = 256
    full_dim: int = 512
    context_length: int = 131072
    architecture: str = "gemma4"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.near_kv_heads

    @property
    def vocabulary(self) -> Vocabulary:
        size = _REAL_VOCABULARY * self.num_layers // self.real_layers // 32 * 32
        return Vocabulary("llama-bpe", size, 256, size)

    @property
    def history_elements(self) -> int:
        """Count a window as full attention, as for a prompt shorter than the window."""
        return sum(2 * self._kv_heads(layer) * self._head_dim(layer) for layer in self._storing)

    @property
    def attention_products(self) -> int:
        return sum(2 * self.num_heads * self._head_dim(layer) for layer in range(self.num_layers))

    @property
    def _storing(self) -> range:
        return range(self.num_layers - self.num_shared)

    def _head_dim(self, layer: int) -> int:
        return self.full_dim if layer in self.full else self.near_dim

    def _kv_heads(self, layer: int) -> int:
        return self.full_kv_heads if layer in self.full else self.near_kv_heads

    def metadata(self) -> Metadata:
        layers = range(self.num_layers)
        experts: Metadata = {
            "expert_count": self.num_experts,
            "expert_used_count": self.num_used,
            "expert_feed_forward_length": self.expert_size,
        }
        return {
            "context_length": self.context_length,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.ffn_size,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": [self._kv_heads(layer) for layer in layers],
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.key_length": self.full_dim,
            "attention.value_length": self.full_dim,
            "attention.key_length_swa": self.near_dim,
            "attention.value_length_swa": self.near_dim,
            "attention.sliding_window": self.window,
            "attention.sliding_window_pattern": [layer not in self.full for layer in layers],
            "attention.shared_kv_layers": self.num_shared,
            "embedding_length_per_layer_input": self.per_layer,
            "final_logit_softcapping": 30.0,
            "rope.dimension_count": self.full_dim,
            "rope.dimension_count_swa": self.near_dim,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            **(experts if self.num_experts else {}),
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        turned = np.full(self.full_dim // 2, _NOT_TURNED, np.float32)
        turned[: self.full_dim // 8] = 1
        yield "rope_freqs.weight", turned
        yield "output_norm.weight", np.ones(self.hidden_size, np.float32)
        if self.per_layer:
            yield "per_layer_proj_norm.weight", np.ones(self.per_layer, np.float32)
        for layer in range(self.num_layers):
            for name, size in self._norms(layer):
                yield f"blk.{layer}.{name}.weight", np.ones(size, np.float32)
            if self.num_experts:
                router = rng.standard_normal((self.num_experts, self.hidden_size), np.float32)
                yield f"blk.{layer}.ffn_gate_inp.weight", router
                yield f"blk.{layer}.ffn_gate_inp.scale", np.ones(self.hidden_size, np.float32)
                yield f"blk.{layer}.ffn_down_exps.scale", np.ones(self.num_experts, np.float32)

    def _norms(self, layer: int) -> Iterator[tuple[str, int]]:
        """Return names and sizes of a layer's vectors."""
        yield "layer_output_scale", 1
        yield "attn_q_norm", self._head_dim(layer)
        yield "attn_k_norm", self._head_dim(layer)
        names = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
        if self.num_experts:
            names += ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]
        if self.per_layer:
            names.append("post_norm")
        yield from ((name, self.hidden_size) for name in names)

    def matrices(self) -> Iterator[Matrix]:
        hidden, size = self.hidden_size, self.vocabulary.size
        yield Matrix("token_embd", size, hidden, is_head=True)
        if self.per_layer:
            own = self.num_layers * self.per_layer
            yield Matrix("per_layer_token_embd", size, own, share=0.0)
            yield Matrix("per_layer_model_proj", own, hidden)
        for layer in range(self.num_layers):
            yield from self._attention(layer)
            yield from self._ffn(layer)
            if self.per_layer:
                yield Matrix(f"blk.{layer}.inp_gate", self.per_layer, hidden, layer)
                yield Matrix(f"blk.{layer}.proj", hidden, self.per_layer, layer)

    def _attention(self, layer: int) -> Iterator[Matrix]:
        """Return the matrices of attention; layers that store nothing have key and value matrices, too."""
        block, hidden = f"blk.{layer}", self.hidden_size
        heads = self.num_heads * self._head_dim(layer)
        kv_heads = self._kv_heads(layer) * self._head_dim(layer)
        share = float(layer in self._storing)
        yield Matrix(f"{block}.attn_q", heads, hidden, layer)
        yield Matrix(f"{block}.attn_k", kv_heads, hidden, layer, share=share)
        if self.has_full_values or layer not in self.full:
            yield Matrix(f"{block}.attn_v", kv_heads, hidden, layer, share=share)
        yield Matrix(f"{block}.attn_output", hidden, heads, layer)

    def _ffn(self, layer: int) -> Iterator[Matrix]:
        block, hidden, ffn = f"blk.{layer}", self.hidden_size, self.ffn_size
        yield Matrix(f"{block}.ffn_gate", ffn, hidden, layer)
        yield Matrix(f"{block}.ffn_up", ffn, hidden, layer)
        yield Matrix(f"{block}.ffn_down", hidden, ffn, layer)
        if self.num_experts:
            count, share = self.num_experts, self.num_used / self.num_experts
            both = 2 * self.expert_size
            yield Matrix(f"{block}.ffn_gate_up_exps", both, hidden, layer, count, share)
            yield Matrix(f"{block}.ffn_down_exps", hidden, self.expert_size, layer, count, share)


SHAPES = {
    "gemma-4-e4b": Gemma4(21, 42, (5, 11, 17, 20), 2560, 8, 2, 2, 10240, 512, num_shared=9, per_layer=256),
    "gemma-4-26b-a4b": Gemma4(
        3,
        30,
        (2,),
        2816,
        16,
        8,
        2,
        2112,
        1024,
        num_experts=128,
        num_used=8,
        expert_size=704,
        has_full_values=False,
        context_length=262144,
    ),
}
