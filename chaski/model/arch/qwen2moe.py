"""Qwen 1.5 and 2 with experts (Yang et al. 2024): weights do not add up to 1; the one for all has a gate."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.expert_ops import Gating
from chaski.ml.nn import Experts, GatedSharedExpert, MixedFeedForward
from chaski.model.arch import qwen2
from chaski.model.experts import read_routing


class Model(qwen2.Model):
    def ffn(self, file: GGUFFile) -> MixedFeedForward:
        size = self.config.hidden_size
        hidden = file.get("qwen2moe.expert_feed_forward_length", int)
        shared = file.get("qwen2moe.expert_shared_feed_forward_length", int)
        routing = read_routing(file, Gating.SOFTMAX, normalized=False)
        return MixedFeedForward(Experts(size, hidden, routing), GatedSharedExpert(size, shared))
