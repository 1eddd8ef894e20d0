"""Jais (Sengupta et al. 2023): GPT-2 with ALiBi, gates, and scores divided by the size of a head."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Tensor
from chaski.ml.nn import SwiGLU
from chaski.model.arch import gpt2, mpt
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("jais", "Jais 590M to 70B", reads=("attention.max_alibi_bias",))


class Attention(gpt2.Attention):
    @property
    def scale(self) -> float:
        return 1 / self._config.head_size


class Model(mpt.Model):
    def layer(self, file: GGUFFile) -> gpt2.Layer:
        return gpt2.Layer(self.config, Attention(self.config), self.ffn())

    def ffn(self) -> Callable[[Tensor], Tensor]:
        return SwiGLU(self.config.hidden_size, self.config.ffn_size)
