"""ERNIE 4.5 with experts (Baidu 2025): a bias for the choice among a softmax, and layers without experts."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig
from chaski.model.arch import deepseek
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router

ARCHITECTURE = Architecture(
    "ernie4_5-moe",
    "ERNIE 4.5 with experts",
    tools=("ernie",),
    thinking=("ernie",),
    reads=("interleave_moe_layer_step", "leading_dense_block_count"),
)


class Model(deepseek.Model):
    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=True)
