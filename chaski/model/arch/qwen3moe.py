"""Qwen 3 with experts (Yang et al. 2025): softmax over all, top few, weights summing to 1."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import MoE, SwiGLU
from chaski.model.arch import qwen3
from chaski.model.experts import read_router


class Model(qwen3.Model):
    def ffn(self, file: GGUFFile) -> SwiGLU | MoE:
        hidden = file.get(f"{file.architecture}.expert_feed_forward_length", int)
        return MoE(self.config.hidden_size, hidden, read_router(file, Gating.SOFTMAX, normalized=True))
