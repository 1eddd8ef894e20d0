"""Nomic Embed (Nussbaum et al. 2024): BERT with rope and SwiGLU."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Tensor
from chaski.ml.nn import SwiGLU
from chaski.model.arch import jina_bert_v3
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("nomic-bert", "Nomic Embed Text")


class Model(jina_bert_v3.Model):
    def ffn(self, file: GGUFFile, index: int) -> Callable[[Tensor], Tensor]:
        return SwiGLU(self.config.hidden_size, self.config.ffn_size)
