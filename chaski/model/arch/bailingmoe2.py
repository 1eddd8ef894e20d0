"""Ling 2 (Ling Team 2025): Qwen 3's attention, leading dense layers, and experts of the best groups."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig
from chaski.model.arch import dots1
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture(
    "bailingmoe2",
    "Ling 2, Ring 2, Sarvam",
    reads=("leading_dense_block_count", "nextn_predict_layers"),
)


class Model(dots1.Model):
    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=False)
