"""RND1 (Radical Numerics 2025): Qwen 3 with experts, trained on to denoise an answer."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig
from chaski.model.arch import llada_moe
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture(
    "rnd1",
    "RND1 Base",
    notes="A diffusion model: see docs/diffusion.md.",
    fixed={"attention.causal": (False,)},
)


class Model(llada_moe.Model):
    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=True)
