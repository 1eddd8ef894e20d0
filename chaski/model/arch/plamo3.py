"""PLaMo 3 (Preferred Networks 2025): four norms in each layer, head norms, and windows with another rope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import DecoderLayer, FusedGLU, RMSNorm, output_rows
from chaski.model.arch import qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.rope import read_base
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "plamo3",
    "PLaMo 3",
    tools=("plamo3",),
    reads=("attention.sliding_window", "rope.freq_base_swa"),
)


class Layer(DecoderLayer):
    """A layer with a norm before and after each block. Files name the later ones without `weight`."""

    def __init__(self, config: DecoderConfig, attn: Callable[..., Tensor], ffn: FusedGLU) -> None:
        size, self._eps = config.hidden_size, config.eps
        self.attn_norm = RMSNorm(size, config.eps)
        self.attn = attn
        self.post_attention_norm = Weight((size,))
        self.ffn_norm = RMSNorm(size, config.eps)
        self.ffn = ffn
        self.post_ffw_norm = Weight((size,))

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.attn(self.attn_norm(x), *context), x)
        x = x + ops.rms_norm(h, self.post_attention_norm, self._eps)
        return x + ops.rms_norm(self.ffn(self.ffn_norm(x)), self.post_ffw_norm, self._eps)


class Model(WindowedModel):
    period = 8

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._near_base = read_base(file, f"{file.architecture}.rope.freq_base_swa")
        super().__init__(file, projector)

    def layer(self, file: GGUFFile) -> Layer:
        return Layer(self.config, qwen3.Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> FusedGLU:
        return FusedGLU(self.config.hidden_size, self.config.ffn_size)

    def near_rope(self) -> Rope:
        return self.config.rope.unscaled(self._near_base).rope(neox=True)

    def far_rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
