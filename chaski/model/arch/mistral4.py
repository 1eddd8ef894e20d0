"""Mistral Small 4 (Mistral AI 2026): DeepSeek's latent attention and experts, and Pixtral's encoder."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml.nn import RouterConfig
from chaski.model.arch import deepseek2
from chaski.model.arch.mistral3.vision import Vision
from chaski.model.architecture import Architecture
from chaski.model.multimodal import MultimodalProcessor

ARCHITECTURE = Architecture(
    "mistral4",
    "Mistral Small 4",
    tools=("ministral", "mistral"),
    thinking=("ministral",),
    notes="Queries grow with their position, as in transformers. Files of llama.cpp's converter lack the key "
    "for it, and get the factor of the published model.",
    reads=("attention.temperature_scale", "leading_dense_block_count"),
)


class Model(deepseek2.Model):
    """A group of experts has the rank of its best two."""

    temperature = 0.1  # the published model's

    def encoder(self, file: GGUFFile, projector: GGUFFile | None) -> MultimodalProcessor | None:
        if projector is None and f"{file.architecture}.vision.block_count" not in file.metadata:
            return None
        return Vision(projector or file, self.config.hidden_size, self.config.eps)

    def router(self, file: GGUFFile) -> RouterConfig:
        router = super().router(file)
        return replace(router, groups=replace(router.groups, best=2))
