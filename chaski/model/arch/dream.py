"""Dream (Ye et al. 2025): Qwen 2.5, trained on to denoise an answer."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.model.arch import qwen2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.denoising import denoising_config

ARCHITECTURE = Architecture(
    "dream",
    "Dream 7B, Dream Coder",
    notes="A diffusion model: see docs/diffusion.md.",
    fixed={"attention.causal": (False,)},
)


class Model(qwen2.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return denoising_config(file)
