"""EmbeddingGemma (Google 2025): Gemma 3 with bidirectional attention and two layers after mean pooling."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, LayerCache
from chaski.ml.graph import Tensor
from chaski.ml.nn import SandwichLayer
from chaski.model.arch.gemma3.text import TextModel
from chaski.model.architecture import GELU, Architecture
from chaski.model.config import DecoderConfig
from chaski.model.dense import DenseLayers
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "gemma-embedding",
    "EmbeddingGemma",
    notes="Dense layers of sentence-transformers after the pooling are converted too.",
    reads=("attention.scale", "attention.sliding_window", "attn_logit_softcapping", "rope.freq_base_swa"),
    fixed={
        "attention.causal": (False,),
        "hidden_activation": GELU,
    },
)


class Model(TextModel):
    """Gemma 3 whose windows extend equally far before and after a token."""

    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, is_causal=False)
        super().__init__(file, config)
        self.dense = DenseLayers(file, config.hidden_size)

    def span(self, layer: SandwichLayer) -> AttentionSpan:
        if layer.window is None:
            return AttentionSpan()
        return AttentionSpan(layer.window // 2 + 1, ahead=layer.window // 2)

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        return self.dense(super().__call__(inputs, caches))
