"""LLaDA (Nie et al. 2025): Llama's layers with bidirectional attention, which denoise an answer."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.denoising import denoising_config

ARCHITECTURE = Architecture(
    "llada",
    "LLaDA 8B, LLaDA 1.5",
    notes="A diffusion model: see docs/diffusion.md.",
    fixed={"attention.causal": (False,)},
)


class Model(llama.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return denoising_config(file)
