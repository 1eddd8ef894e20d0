"""Mamba 2: every layer is a state space.

Sizes come from `config.json` of state-spaces/mamba2-130m and state-spaces/mamba2-780m on Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.shapes.shape import Matrix, Metadata, Vectors, Vocabulary

__all__ = ["SHAPES", "Mamba2"]


@dataclass(frozen=True, slots=True)
class Mamba2:
    num_layers: int
    hidden_size: int
    head_dim: int = 64
    state_size: int = 128
    groups: int = 1
    taps: int = 4
    architecture: str = "mamba2"

    heads_per_kv_head = 1
    history_elements = 0  # a state does not grow
    attention_products = 0

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary("llama-bpe", 50288, 256, 50288)

    @property
    def _inner(self) -> int:
        return 2 * self.hidden_size

    @property
    def _num_heads(self) -> int:
        return self._inner // self.head_dim

    @property
    def _channels(self) -> int:
        """Return the channels of the convolution: x, B and C."""
        return self._inner + 2 * self.groups * self.state_size

    def metadata(self) -> Metadata:
        return {
            "context_length": 1 << 20,
            "embedding_length": self.hidden_size,
            "block_count": self.num_layers,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "ssm.conv_kernel": self.taps,
            "ssm.inner_size": self._inner,
            "ssm.state_size": self.state_size,
            "ssm.time_step_rank": self._num_heads,
            "ssm.group_count": self.groups,
        }

    def vectors(self, rng: np.random.Generator) -> Vectors:
        heads = self._num_heads
        yield "output_norm.weight", np.ones(self.hidden_size, np.float32)
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            yield f"{block}.attn_norm.weight", np.ones(self.hidden_size, np.float32)
            yield f"{block}.ssm_conv1d.weight", rng.standard_normal((self._channels, self.taps), np.float32)
            yield f"{block}.ssm_conv1d.bias", np.zeros(self._channels, np.float32)
            yield f"{block}.ssm_dt.bias", np.full(heads, -2, np.float32)
            yield f"{block}.ssm_a", -np.linspace(1, 16, heads, dtype=np.float32)[:, None]
            yield f"{block}.ssm_d", np.ones((heads, 1), np.float32)
            yield f"{block}.ssm_norm.weight", np.ones((self.groups, self._inner // self.groups), np.float32)

    def matrices(self) -> Iterator[Matrix]:
        hidden, inner = self.hidden_size, self._inner
        yield Matrix("token_embd", self.vocabulary.size, hidden, is_head=True)
        for layer in range(self.num_layers):
            rows = inner + self._channels + self._num_heads
            yield Matrix(f"blk.{layer}.ssm_in", rows, hidden, layer)
            yield Matrix(f"blk.{layer}.ssm_out", hidden, inner, layer)


SHAPES = {"mamba2-130m": Mamba2(24, 768), "mamba2-780m": Mamba2(48, 1536)}
