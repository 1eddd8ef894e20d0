"""Seed-OSS (ByteDance Seed 2025): Qwen 2 whose second norm has another name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Tensor
from chaski.ml.nn import DecoderLayer, RMSNorm, output_rows
from chaski.model.arch import llama, qwen2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture("seed_oss", "Seed-OSS", tools=("seed",), thinking=("seed",))


class Layer(DecoderLayer):
    """Llama's layer. Files call the norm before the feed-forward block `post_attention_norm`."""

    def __init__(
        self, config: DecoderConfig, attn: Callable[..., Tensor], ffn: Callable[[Tensor], Tensor]
    ) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = attn
        self.post_attention_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h
        return x + self.ffn(self.post_attention_norm(x))


class Model(qwen2.Model):
    def layer(self, file: GGUFFile) -> Layer:
        return Layer(self.config, llama.Attention(self.config), self.ffn(file))
