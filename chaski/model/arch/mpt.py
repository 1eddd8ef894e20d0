"""MPT (MosaicML 2023): GPT-2 without biases, with ALiBi and an optional bound of queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import MLP
from chaski.model.alibi import alibi, alibi_slopes
from chaski.model.arch import gpt2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "mpt", "MPT 7B and 30B", reads=("attention.clamp_kqv", "attention.max_alibi_bias")
)


class Attention(gpt2.Attention):
    """Attention whose queries, keys and values are limited to ±`bound`; 0 is no bound."""

    def __init__(self, config: DecoderConfig, bound: float) -> None:
        super().__init__(config)
        self._bound = bound

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projections(x)
        if not self._bound:
            return q, k, v
        low, high = -self._bound, self._bound
        return (
            ops.clamp(q, low=low, high=high),
            ops.clamp(k, low=low, high=high),
            ops.clamp(v, low=low, high=high),
        )


class Model(gpt2.LayerNormDecoder):
    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        largest = file.get(f"{file.architecture}.attention.max_alibi_bias", float, 0.0)
        self._slopes = alibi_slopes(self.config.num_heads, largest)

    def layer(self, file: GGUFFile) -> gpt2.Layer:
        bound = file.get(f"{file.architecture}.attention.clamp_kqv", float, 0.0)
        return gpt2.Layer(self.config, Attention(self.config, bound), self.ffn())

    def ffn(self) -> Callable[[Tensor], Tensor]:
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.gelu)

    def bias(self, inputs: Inputs) -> ops.DistanceBias:
        return alibi(self._slopes, self.context, inputs.positions)
