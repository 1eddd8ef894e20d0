"""Models in which some layers attend and the others are recurrent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerKind, Recurrent
from chaski.ml.graph import Tensor
from chaski.ml.nn import DecoderLayer
from chaski.model.arch import llama
from chaski.model.config import is_recurrent
from chaski.model.input import Inputs

__all__ = ["HybridModel"]


class HybridModel(llama.Model):
    """Llama with recurrent layers. `attn` of a layer takes a cache, preceded by `positions` if it attends."""

    @abstractmethod
    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        """Return a function that makes the block of a recurrent layer, and the kind of such layers."""

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        self._is_recurrent = tuple(is_recurrent(file, self.config.num_layers, interval=1))
        block, self._recurrent = self.recurrence(file)
        layers = super().layers(file)
        for layer, recurrent in zip(layers, self._is_recurrent, strict=True):
            if recurrent:
                layer.attn = block()
        return layers

    def layer_kinds(self) -> Sequence[LayerKind]:
        attending = super().layer_kinds()
        return [
            self._recurrent if recurrent else kind
            for recurrent, kind in zip(self._is_recurrent, attending, strict=True)
        ]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        positions = self.positions(inputs)
        x = self.embed(inputs)
        for layer, recurrent, cache in zip(self.blk, self._is_recurrent, caches, strict=True):
            context = (cache,) if recurrent else (positions, cache)
            x = layer(x, *context, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
