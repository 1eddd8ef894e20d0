"""DeepSeek V2 to V3.1 and R1 (DeepSeek-AI 2024), and models like them: latent attention and experts."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RouterConfig
from chaski.model.arch import deepseek, llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.latent import latent_attention, latent_config

ARCHITECTURE = Architecture(
    "deepseek2",
    "DeepSeek V2 to V3.1 and R1, Kimi K2, GLM 4.7 Flash, Moonlight, Youtu",
    tools=("deepseek3", "glm-4.7"),
    thinking=("deepseek3", "glm-4.7"),
    notes="Blocks for multi-token prediction are left out.",
    reads=("leading_dense_block_count", "nextn_predict_layers"),
)


class Model(deepseek.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return latent_config(file, super().read_config(file))

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, latent_attention(file, self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        has_experts = file.get(f"{file.architecture}.expert_count", int, 0)
        return super().ffn(file) if has_experts else llama.feed_forward(file, self.config)

    def router(self, file: GGUFFile) -> RouterConfig:
        # Version 3 chooses by sigmoid, with a bias. In version 2 a group has the rank of its best expert.
        has_bias = any(name.endswith("exp_probs_b.bias") for name in file.tensors)
        router = read_router(file, Gating.SIGMOID if has_bias else Gating.SOFTMAX, normalized=False)
        best = 1 if router.gating is Gating.SOFTMAX else 2
        return replace(router, groups=replace(router.groups, best=best), has_bias=has_bias)
