"""Falcon H1 (Zuo et al. 2025): each layer attends, and is Mamba 2 at the same time.

Files contain the factors of the checkpoint's matrices in the matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind, RecurrentLayer
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor, Weight
from chaski.ml.nn import Module, RMSNorm, SwiGLU, output_rows
from chaski.model.arch.llama import Attention
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.state_space import Mamba2, Mamba2Config

ARCHITECTURE = Architecture("falcon-h1", "Falcon H1", fixed={"attention.causal": (True,)})


class Layer(Module):
    def __init__(self, config: DecoderConfig, mamba: Mamba2Config) -> None:
        self._eps = config.eps
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.attn = Attention(config)
        self.mamba = Mamba2(config.hidden_size, config.eps, mamba)
        self.ffn_norm = Weight((config.hidden_size,))  # without `weight` after its name
        self.ffn = SwiGLU(config.hidden_size, config.ffn_size)

    def __call__(
        self, x: Tensor, rope: Tensor, state: RecurrentLayer, cache: LayerCache, outputs: Tensor | None
    ) -> Tensor:
        normalized = self.attn_norm(x)
        h = self.mamba(normalized, state) + self.attn(normalized, rope, cache)
        h, x = output_rows(outputs, h, x)
        x = x + h
        return x + self.ffn(ops.rms_norm(x, self.ffn_norm, self._eps))


class Model(Decoder):
    """A layer has two caches, one for each of its parts."""

    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        self._mamba = Mamba2Config.read(file)
        self.blk = [Layer(config, self._mamba) for _ in range(config.num_layers)]

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [self._mamba.kind(), Causal(c.kv_shape(self.rope()))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        rope = inputs.rope_table(self.rope())
        x = self.token_embd(inputs.tokens)
        for layer, state, cache in zip(self.blk, caches[::2], caches[1::2], strict=True):
            x = layer(x, rope, state, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
