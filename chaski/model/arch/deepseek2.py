"""DeepSeek V2 to V3.1 and R1 (DeepSeek-AI 2024), and models like them: latent attention and experts."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, LatentAttention, Module, RouterConfig
from chaski.model.arch import deepseek, llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router
from chaski.model.input import Inputs
from chaski.model.latent import latent_attention, latent_config

ARCHITECTURE = Architecture(
    "deepseek2",
    "DeepSeek V2 to V3.1 and R1, Kimi K2 and K2.5, Kimi-VL, GLM 4.7 Flash, Mistral Large 3, Moonlight, Youtu",
    tools=("deepseek3", "glm-4.7", "kimi-k2"),
    thinking=("deepseek3", "glm-4.7"),
    notes="Pictures, not videos, with a projector of Kimi-VL or Kimi K2.5.",
    reads=("attention.temperature_scale", "leading_dense_block_count", "nextn_predict_layers"),
)


class Attention(Module):
    """Latent attention whose queries may have a factor for their position."""

    inline = True

    def __init__(self, attn: LatentAttention) -> None:
        self.attn = attn

    def __call__(
        self, x: Tensor, positions: tuple[Tensor | None, Tensor | None], cache: LayerCache
    ) -> Tensor:
        rope, factors = positions
        return self.attn(x, rope, cache, factors)


class Model(deepseek.Model):
    """Mistral's models multiply queries far beyond the trained context by factors, as Ministral 3 does.

    `temperature`: the strength of these factors for files that do not state it.
    """

    temperature = 0.0

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        prefix = f"{file.architecture}.attention.temperature"
        yarn = self.config.rope.yarn
        trained = self.config.context_length if yarn is None else yarn.trained
        self._beta = file.get(f"{prefix}_scale", float, self.temperature)
        self._length = file.get(f"{prefix}_length", int, 0) or trained

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return latent_config(file, super().read_config(file))

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, Attention(latent_attention(file, self.config)), self.ffn(file))

    def positions(self, inputs: Inputs) -> tuple[Tensor | None, Tensor | None]:
        factors = ops.position_scale(inputs.positions, self._length, self._beta) if self._beta else None
        return super().positions(inputs), factors

    def router(self, file: GGUFFile) -> RouterConfig:
        # Version 3 chooses by sigmoid, with a bias. In version 2 a group has the rank of its best expert.
        has_bias = any(name.endswith("exp_probs_b.bias") for name in file.tensors)
        router = read_router(file, Gating.SIGMOID if has_bias else Gating.SOFTMAX, normalized=False)
        best = 1 if router.gating is Gating.SOFTMAX else 2
        return replace(router, groups=replace(router.groups, best=best), has_bias=has_bias)
