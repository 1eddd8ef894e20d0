"""CogVLM (Wang et al. 2023), text: Llama with NeoX pairs. Its experts for pictures are not used."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.ml.nn import DecoderLayer
from chaski.model.arch import llama
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "cogvlm",
    "CogVLM",
    notes="Text only: the encoder of pictures is not supported yet. llama.cpp's first token after a prompt "
    "is another one, as it takes it from the first row of logits.",
)


_BASE = 10000.0  # no file changes it


class Model(llama.Model):
    def rope(self) -> Rope:
        return self.config.rope.unscaled(_BASE).rope(neox=True)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        layer = super().layer(file)
        layer.unused = ("vis_",)
        return layer
