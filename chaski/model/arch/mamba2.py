"""Mamba 2 (Dao and Gu 2024): every layer is a state space, and none attends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind, RecurrentLayer
from chaski.ml.graph import Tensor
from chaski.ml.nn import Module, RMSNorm, output_rows
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.state_space import Mamba2, Mamba2Config

ARCHITECTURE = Architecture(
    "mamba2",
    "Mamba 2, Mamba Codestral",
    fixed={"attention.causal": (True,)},
)


class Layer(Module):
    def __init__(self, config: DecoderConfig, mixer: Callable[..., Tensor]) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.mixer = mixer

    def __call__(self, x: Tensor, cache: RecurrentLayer, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.mixer(self.attn_norm(x), cache), x)
        return x + h


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, num_heads=1)
        super().__init__(config)
        self._mamba = Mamba2Config.read(file)
        self.blk = [
            Layer(config, Mamba2(config.hidden_size, config.eps, self._mamba))
            for _ in range(config.num_layers)
        ]

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [self._mamba.kind()] * self.config.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[RecurrentLayer]) -> Tensor:
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
