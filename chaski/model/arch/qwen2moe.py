"""Qwen 1.5 and 2 with experts (Yang et al. 2024): weights not summing to 1, a gated shared expert."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import GatedSharedExpert, MoE, MoEWithSharedExpert
from chaski.model.arch import qwen2
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture("qwen2moe", "Qwen 1.5 MoE, Qwen 2 57B-A14B")


class Model(qwen2.Model):
    def ffn(self, file: GGUFFile) -> MoEWithSharedExpert:
        size = self.config.hidden_size
        hidden = file.get("qwen2moe.expert_feed_forward_length", int)
        shared = file.get("qwen2moe.expert_shared_feed_forward_length", int)
        router = read_router(file, Gating.SOFTMAX, normalized=False)
        return MoEWithSharedExpert(MoE(size, hidden, router), GatedSharedExpert(size, shared))
