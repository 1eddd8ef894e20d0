"""Falcon (Almazrouei et al. 2023): blocks side by side without biases, and few key/value heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import MLP, DecoderLayer, LayerNorm, output_rows
from chaski.model.arch import gpt2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture("falcon", "Falcon 7B, 40B and 180B, Falcon 2")


class Layer(DecoderLayer):
    """Both blocks read one norm of the states; in the larger models each reads its own."""

    def __init__(self, config: DecoderConfig, ffn: Callable[[Tensor], Tensor]) -> None:
        self.attn_norm = LayerNorm(config.hidden_size, config.eps)
        self.attn_norm_2 = LayerNorm(config.hidden_size, config.eps, optional=True)
        self.attn = gpt2.Attention(config)
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        normed = self.attn_norm(x)
        h = self.attn(self.attn_norm_2(x) if self.attn_norm_2.weight.is_present else normed, *context)
        h, normed, x = output_rows(outputs, h, normed, x)
        return self.ffn(normed) + h + x


class Model(gpt2.LayerNormDecoder):
    def layer(self, file: GGUFFile) -> Layer:
        return Layer(self.config, self.ffn())

    def ffn(self) -> Callable[[Tensor], Tensor]:
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.gelu)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
