"""LLaDA MoE (Zhu et al. 2025): Qwen 3's attention without a mask, and experts with plain weights."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig
from chaski.model.arch import dots1
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.denoising import denoising_config
from chaski.model.experts import read_router

ARCHITECTURE = Architecture(
    "llada-moe",
    "LLaDA MoE 7B",
    notes="A diffusion model: see docs/diffusion.md.",
    fixed={"attention.causal": (False,)},
)


class Model(dots1.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return denoising_config(file)

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=False)
