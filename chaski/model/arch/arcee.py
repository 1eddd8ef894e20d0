"""Arcee's AFM (Arcee AI 2025): Llama with a squared ReLU instead of a gate."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.nn import MLP
from chaski.model.arch import llama
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "arcee",
    "Arcee AFM 4.5B",
    tools=("hermes",),
)


class Model(llama.Model):
    def ffn(self, file: GGUFFile) -> MLP:
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.squared_relu)
