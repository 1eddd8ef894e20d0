"""Mamba (Gu and Dao 2023) and Falcon Mamba: every layer is a selective scan, and none attends."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind, RecurrentLayer
from chaski.ml.graph import Tensor
from chaski.model.arch import mamba2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.selective_scan import Mamba, MambaConfig

ARCHITECTURE = Architecture(
    "mamba",
    "Mamba, Falcon Mamba",
    reads=("ssm.dt_b_c_rms",),
    fixed={"attention.causal": (True,)},
)


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = DecoderConfig.read(file, num_heads=1)
        super().__init__(config)
        self._mamba = MambaConfig.read(file)
        normalizes = file.get(f"{file.architecture}.ssm.dt_b_c_rms", bool, False)
        self.blk = [
            mamba2.Layer(config, Mamba(config.hidden_size, config.eps, self._mamba, normalizes))
            for _ in range(config.num_layers)
        ]

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [self._mamba.kind()] * self.config.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[RecurrentLayer]) -> Tensor:
        x = self.token_embd(inputs.tokens)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, cache, inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
