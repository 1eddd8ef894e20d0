"""ARWKV 7 (Yueyu et al. 2025, https://arxiv.org/abs/2501.15570): Qwen 2 with RWKV 7 instead of attention."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind, RecurrentLayer
from chaski.ml.graph import Tensor
from chaski.ml.nn import Module, RMSNorm, SwiGLU, output_rows
from chaski.model.arch.rwkv7 import Sizes, TimeMix
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.rwkv import rwkv_kind

ARCHITECTURE = Architecture(
    "arwkv7",
    "ARWKV 7",
    fixed={"attention.causal": (True,)},
)


class Layer(Module):
    def __init__(self, config: DecoderConfig, sizes: Sizes, is_first: bool) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = TimeMix(sizes, is_first, may_lack_norm=True)
        self.ffn_norm = RMSNorm(config.hidden_size, config.eps)
        self.ffn = SwiGLU(config.hidden_size, config.ffn_size)

    def __call__(
        self, x: Tensor, first: Tensor | None, cache: RecurrentLayer, outputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        h, values = self.attn(self.attn_norm(x), first, cache, cache.states[1])
        h, x = output_rows(outputs, h, x)
        x = x + h
        return x + self.ffn(self.ffn_norm(x)), values


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, num_heads=1)
        super().__init__(config)
        sizes = Sizes.read(file, config.hidden_size)
        self._kind = rwkv_kind(file, config.hidden_size, shifts=1)
        self.blk = [Layer(config, sizes, not layer) for layer in range(config.num_layers)]

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [self._kind] * self.config.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[RecurrentLayer]) -> Tensor:
        x = self.token_embd(inputs.tokens)
        first: Tensor | None = None
        for layer, cache in zip(self.blk, caches, strict=True):
            x, first = layer(x, first, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
