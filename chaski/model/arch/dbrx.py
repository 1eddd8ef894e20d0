"""DBRX (Databricks 2024): layer norms without biases, bounded queries, keys and values, and experts."""

from __future__ import annotations

from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, LayerNorm, RouterConfig, output_rows
from chaski.model.arch import deepseek, llama
from chaski.model.arch.olmo import Attention
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.experts import read_router

ARCHITECTURE = Architecture("dbrx", "DBRX", reads=("attention.clamp_kqv",))


class Layer(DecoderLayer):
    def __init__(self, config: DecoderConfig, attn: Attention, ffn: llama.FeedForward) -> None:
        self.attn_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        self.attn = attn
        self.attn_output_norm = LayerNorm(config.hidden_size, config.eps, bias=False)
        self.ffn = ffn

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + h
        return x + self.ffn(self.attn_output_norm(x))


class Model(deepseek.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return DecoderConfig.read(file, "layer_norm_epsilon")

    def norm(self, config: DecoderConfig) -> LayerNorm:
        return LayerNorm(config.hidden_size, config.eps, bias=False)

    def layer(self, file: GGUFFile) -> DecoderLayer:
        bound = file.get(f"{file.architecture}.attention.clamp_kqv", float, 0.0)
        return Layer(self.config, Attention(self.config, bound), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=True)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
