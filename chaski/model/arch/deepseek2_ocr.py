"""DeepSeek-OCR (Wei et al. 2025, 2026): DeepSeek MoE with NeoX pairs, and a rope that no file scales."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.ml.graph import Rope
from chaski.model.arch import deepseek
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture(
    "deepseek2-ocr",
    "DeepSeek-OCR, DeepSeek-OCR 2",
    reads=("leading_dense_block_count",),
)

_BASE = 10000.0


class Model(deepseek.Model):
    def rope(self) -> Rope:
        whole = replace(self.config.rope.unscaled(_BASE), dims=self.config.head_size)
        return whole.rope(neox=True)
