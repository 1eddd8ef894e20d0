"""Qwen 1 (Bai et al. 2023): Qwen 2 whose feed-forward blocks are half as large as the file says."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.nn import SwiGLU
from chaski.model.arch import qwen2
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("qwen", "Qwen 1")


class Model(qwen2.Model):
    def ffn(self, file: GGUFFile) -> SwiGLU:
        return SwiGLU(self.config.hidden_size, self.config.ffn_size // 2)
