"""Qwen 3 with experts (Yang et al. 2025): softmax over all, top few, weights summing to 1."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import MoE, SwiGLU
from chaski.model.arch import qwen3
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture(
    "qwen3moe",
    "Qwen 3 with experts, Qwen3-Coder",
    tools=("qwen3", "qwen3-coder"),
    thinking=("qwen3", "qwen3-thinking"),
)


class Model(qwen3.Model):
    def ffn(self, file: GGUFFile) -> SwiGLU | MoE:
        hidden = file.get(f"{file.architecture}.expert_feed_forward_length", int)
        return MoE(self.config.hidden_size, hidden, read_router(file, Gating.SOFTMAX, normalized=True))
