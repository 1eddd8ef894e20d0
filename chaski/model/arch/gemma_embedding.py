"""EmbeddingGemma (Google 2025): Gemma 3 whose tokens all see each other, and two layers for their mean."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, LayerCache
from chaski.ml.graph import Tensor
from chaski.ml.nn import Linear
from chaski.model.arch.gemma3.text import Layer, TextModel
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs


class Model(TextModel):
    """A window shows as much behind a token as before it.

    The two layers have no activation, so the mean of their outputs is their output for the mean. Files may
    come without them.
    """

    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, is_causal=False)
        super().__init__(file, config)
        inner = file.get("gemma-embedding.dense_3_feat_in", int, config.hidden_size)
        self.dense_2 = Linear(config.hidden_size, inner, optional=True)
        self.dense_3 = Linear(inner, config.hidden_size, optional=True)

    def span(self, layer: Layer) -> AttentionSpan:
        if layer.window is None:
            return AttentionSpan()
        return AttentionSpan(layer.window // 2 + 1, ahead=layer.window // 2)

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        x = super().__call__(inputs, caches)
        for dense in (self.dense_2, self.dense_3):
            x = dense(x) if dense.weight.is_present else x
        return x
