"""Llama-Embed-Nemotron (NVIDIA 2025): Llama whose tokens all see each other, as a model for embeddings."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.pooling import Pooling

ARCHITECTURE = Architecture(
    "llama-embed",
    "Llama-Embed-Nemotron 8B",
    notes="Files without a pooling have mean pooling. In files of its own converter, llama.cpp lets no token "
    "see those after it, unlike the published model.",
    fixed={"attention.causal": (False,)},
)


class Model(llama.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return DecoderConfig.read(file, is_causal=False, pooling=Pooling.MEAN)
