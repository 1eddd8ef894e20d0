"""LFM 2 with experts (Liquid AI 2025): the layers of LFM 2, most of them with experts chosen with a bias."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.model.arch import lfm2
from chaski.model.architecture import Architecture
from chaski.model.experts import dense_layers, experts, read_router

ARCHITECTURE = Architecture(
    "lfm2moe",
    "LFM 2 8B-A1B, 24B-A2B",
    tools=("lfm2",),
    reads=("leading_dense_block_count",),
    fixed={"attention.causal": (True,)},
)


class Model(lfm2.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        router = read_router(file, Gating.SIGMOID, normalized=True)
        dense = dense_layers(file, self.config)
        for index, layer in enumerate(self.blk):
            layer.ffn = dense.get(index) or experts(file, self.config, router)
