"""DeepSeek MoE (Dai et al. 2024): Llama with leading dense layers, many small experts and shared experts."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RouterConfig
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.experts import dense_block, dense_layers, experts, read_router
from chaski.model.nextn import AttendingBlocks

ARCHITECTURE = Architecture("deepseek", "DeepSeek MoE 16B", reads=("leading_dense_block_count",))


class Model(llama.Model, AttendingBlocks):
    """A model with experts in most layers. Blocks for multi-token prediction after them are `OwnBlocks`."""

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        layers = super().layers(file)
        for index, dense in dense_layers(file, self.config).items():
            layers[index].ffn = dense
        return layers

    def ffn(self, file: GGUFFile) -> llama.FeedForward:
        if not file.get(f"{file.architecture}.expert_count", int, 0):
            return llama.feed_forward(file, self.config)
        return experts(file, self.config, self.router(file))

    def nextn_layer(self, file: GGUFFile, index: int) -> DecoderLayer:
        """Return the layer of a block; see `NextnModel`."""
        layer = self.layer(file)
        if (dense := dense_block(file, self.config, index)) is not None:
            layer.ffn = dense
        return layer

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=False)
