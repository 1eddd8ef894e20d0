"""Nanbeige 4.2 (Nanbeige 2026): Llama whose layers run several times, with keys and values of each time."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache, LayerKind
from chaski.ml.graph import Tensor
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "nanbeige", "Nanbeige 4.2", tools=("hermes",), reads=("num_loops", "skip_loop_final_norm")
)

_MOST_LOOPS = 64


class Model(llama.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        key = f"{file.architecture}.num_loops"
        self._loops = file.get(key, int, 1)
        if not 1 <= self._loops <= _MOST_LOOPS:
            raise ModelError(f"{file.path}: {key} is {self._loops}; it must be 1 to {_MOST_LOOPS}")
        self._has_norm_between = not file.get(f"{file.architecture}.skip_loop_final_norm", bool, False)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [*super().layer_kinds()] * self._loops

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        positions, x = self.positions(inputs), self.embed(inputs)
        last = len(caches) - 1
        for number, cache in enumerate(caches):
            layer = self.blk[number % len(self.blk)]
            x = layer(x, positions, cache, outputs=inputs.outputs if number == last else None)
            if layer is self.blk[-1] and number < last and self._has_norm_between:
                x = self.output_norm(x)
        return self.head(x)
