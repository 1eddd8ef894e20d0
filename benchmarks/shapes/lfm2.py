"""LFM 2: most layers convolve the last three tokens, and some have attention.

Sizes come from `config.json` of LiquidAI/LFM2-1.2B on Hugging Face. The inner size in that file is 12288, of
which the model uses two thirds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "Lfm2"]

_TAPS = 3


@dataclass(frozen=True, slots=True)
class Lfm2:
    """`attending`: the layers with attention."""

    num_layers: int
    attending: tuple[int, ...]
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_size: int
    vocabulary: Vocabulary
    architecture: str = "lfm2"

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def history_elements(self) -> int:
        """Count no states of convolutions, since they do not grow."""
        return 2 * len(self.attending) * self.num_kv_heads * self.head_dim

    @property
    def attention_products(self) -> int:
        return 2 * len(self.attending) * self.hidden_size

    def metadata(self) -> Metadata:
        layers = range(self.num_layers)
        return {
            "context_length": 128000,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": self.ffn_size,
            "attention.head_count": self.num_heads,
            "attention.head_count_kv": [self.num_kv_heads * (layer in self.attending) for layer in layers],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e6,
            "shortconv.l_cache": _TAPS,
            "vocab_size": self.vocabulary.size,
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        hidden, head = np.ones(self.hidden_size, np.float32), np.ones(self.head_dim, np.float32)
        yield "token_embd_norm.weight", hidden
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            yield f"{block}.attn_norm.weight", hidden
            yield f"{block}.ffn_norm.weight", hidden
            if layer in self.attending:
                yield f"{block}.attn_q_norm.weight", head
                yield f"{block}.attn_k_norm.weight", head
            else:
                filters = rng.standard_normal((self.hidden_size, _TAPS), np.float32)
                yield f"{block}.shortconv.conv.weight", filters

    def matrices(self) -> Iterator[Matrix]:
        hidden, ffn, kv_heads = self.hidden_size, self.ffn_size, self.num_kv_heads * self.head_dim
        yield Matrix("token_embd", self.vocabulary.size, hidden, is_head=True)
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            if layer in self.attending:
                yield Matrix(f"{block}.attn_q", hidden, hidden, layer)
                yield Matrix(f"{block}.attn_k", kv_heads, hidden, layer)
                yield Matrix(f"{block}.attn_v", kv_heads, hidden, layer)
                yield Matrix(f"{block}.attn_output", hidden, hidden, layer)
            else:
                yield Matrix(f"{block}.shortconv.in_proj", 3 * hidden, hidden, layer)
                yield Matrix(f"{block}.shortconv.out_proj", hidden, hidden, layer)
            yield Matrix(f"{block}.ffn_gate", ffn, hidden, layer)
            yield Matrix(f"{block}.ffn_up", ffn, hidden, layer)
            yield Matrix(f"{block}.ffn_down", hidden, ffn, layer)


_VOCABULARY = Vocabulary("lfm2", 65536, 256, 65536)
SHAPES = {"lfm2-1.2b": Lfm2(16, (2, 5, 8, 10, 12, 14), 2048, 32, 8, 8192, _VOCABULARY)}
