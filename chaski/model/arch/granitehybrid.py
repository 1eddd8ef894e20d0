"""Granite 4 H (Granite Team 2025) and Bamba: Granite in which most layers are Mamba 2 and few attend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind
from chaski.ml.graph import Tensor
from chaski.ml.nn import DecoderLayer
from chaski.model.arch import granite
from chaski.model.architecture import Architecture
from chaski.model.config import is_recurrent
from chaski.model.input import Inputs
from chaski.model.state_space import Mamba2, Mamba2Config

ARCHITECTURE = Architecture(
    "granitehybrid",
    "Granite 4 H, dense and with experts",
    tools=("hermes",),
    reads=("attention.scale", "embedding_scale", "logit_scale", "residual_scale"),
    fixed={"attention.causal": (True,)},
)


class Model(granite.Model):
    """Granite. `attn` of a layer takes a cache, preceded by the rope if it is attention."""

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        self._mamba = Mamba2Config.read(file)
        self._is_recurrent = tuple(is_recurrent(file, self.config.num_layers, interval=1))
        layers: list[DecoderLayer] = []
        for recurrent in self._is_recurrent:
            layer = self.layer(file)
            if recurrent:
                layer.attn = Mamba2(self.config.hidden_size, self.config.eps, self._mamba)
            layers.append(layer)
        return layers

    def layer_kinds(self) -> Sequence[LayerKind]:
        attending = super().layer_kinds()
        kinds: list[LayerKind] = []
        for recurrent, kind in zip(self._is_recurrent, attending, strict=True):
            kinds.append(self._mamba.kind() if recurrent else kind)
        return kinds

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        rope = inputs.rope_table(self.rope())
        x = self.embed(inputs)
        for layer, recurrent, cache in zip(self.blk, self._is_recurrent, caches, strict=True):
            context = (cache,) if recurrent else (rope, cache)
            x = layer(x, *context, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
