"""Jina Embeddings 2 (Günther et al. 2023): BERT with symmetric ALiBi and GeGLU."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import FusedGLU, LayerNorm
from chaski.model.alibi import alibi, alibi_slopes
from chaski.model.arch import bert
from chaski.model.architecture import GELU, Architecture
from chaski.model.config import DecoderConfig
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "jina-bert-v2",
    "Jina Embeddings 2",
    notes="The code model is converted with the halves of its gates swapped: llama.cpp's files apply "
    "the activation to the wrong half, and chaski reads them unchanged.",
    reads=("attention.max_alibi_bias",),
    fixed={"hidden_activation": GELU},
)


_LARGEST_BIAS = 8.0


class Attention(bert.Attention):
    """BERT attention; the model for code normalizes queries and keys, all heads at once."""

    def __init__(self, config: DecoderConfig, has_norms: bool) -> None:
        super().__init__(config)
        size = config.num_heads * config.head_size
        self._has_norms = has_norms
        if has_norms:
            self.attn_q_norm = LayerNorm(size, config.eps)
            self.attn_k_norm = LayerNorm(size, config.eps)

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = super().queries_and_keys(x)
        return (self.attn_q_norm(q), self.attn_k_norm(k)) if self._has_norms else (q, k)


class Layer(bert.Layer):
    """A BERT layer; the model for code adds the input of attention twice, with a norm after each sum."""

    def __init__(
        self, config: DecoderConfig, attn: Attention, ffn: Callable[[Tensor], Tensor], is_added_twice: bool
    ) -> None:
        super().__init__(config, attn, ffn)
        self._is_added_twice = is_added_twice
        if is_added_twice:
            self.attn_norm_2 = LayerNorm(config.hidden_size, config.eps)

    def attended(self, x: Tensor, h: Tensor) -> Tensor:
        h = super().attended(x, h)
        return self.attn_norm_2(h + x) if self._is_added_twice else h


class Model(bert.TextEncoder):
    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        largest = file.get(f"{file.architecture}.attention.max_alibi_bias", float, _LARGEST_BIAS)
        self._slopes = alibi_slopes(self.config.num_heads, largest)

    def layer(self, file: GGUFFile, index: int) -> Layer:
        c, names = self.config, file.tensors
        attn = Attention(c, f"blk.{index}.attn_q_norm.weight" in names)
        ffn = FusedGLU(c.hidden_size, c.ffn_size, ops.erf_geglu)
        return Layer(c, attn, ffn, f"blk.{index}.attn_norm_2.weight" in names)

    def bias(self, inputs: Inputs) -> ops.DistanceBias:
        return alibi(self._slopes, self.context, inputs.positions)
