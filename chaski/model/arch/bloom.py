"""BLOOM (BigScience 2022): GPT-2 with a norm of the embeddings, and ALiBi instead of positions."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import LayerNorm
from chaski.model.alibi import alibi, alibi_slopes
from chaski.model.arch import gpt2
from chaski.model.architecture import Architecture
from chaski.model.input import Inputs

ARCHITECTURE = Architecture("bloom", "BLOOM, BLOOMZ")

_LARGEST_BIAS = 8.0


class Model(gpt2.LayerNormDecoder):
    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        self.token_embd_norm = LayerNorm(self.config.hidden_size, self.config.eps)
        self._slopes = alibi_slopes(self.config.num_heads, _LARGEST_BIAS)

    def embed(self, inputs: Inputs) -> Tensor:
        return self.token_embd_norm(super().embed(inputs))

    def bias(self, inputs: Inputs) -> ops.DistanceBias:
        return alibi(self._slopes, self.context, inputs.positions)
