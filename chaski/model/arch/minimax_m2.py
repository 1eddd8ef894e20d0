"""MiniMax M2 (MiniMax 2025): norms over all queries and all keys, and experts chosen with a bias."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.model.arch import llama, olmoe
from chaski.model.architecture import Architecture
from chaski.model.experts import experts, read_router

ARCHITECTURE = Architecture(
    "minimax-m2", "MiniMax M2, M2.1, M2.5", tools=("minimax-m2",), thinking=("minimax-m2",)
)


class Model(olmoe.Model):
    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        router = read_router(file, Gating.SIGMOID, normalized=True, has_bias=True)
        return experts(file, self.config, router)
