"""Phi 3 to 4 (Abdin et al. 2024): Llama with joined tensors, a window, and LongRoPE (Ding et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import AttentionSpan, Causal, LayerKind
from chaski.ml.graph import Rope
from chaski.ml.nn import FusedGLU
from chaski.model.architecture import Architecture
from chaski.model.config import sliding_layers
from chaski.model.longrope import LongRopeModel

ARCHITECTURE = Architecture(
    "phi3",
    "Phi 3 to 4, Phi 4 mini and reasoning",
    tools=("bare-json",),
    thinking=("bare-json",),
    notes="LongRoPE uses the factors for the context with which the model is loaded.",
    reads=("attention.sliding_window",),
)


class Model(LongRopeModel):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        window = AttentionSpan(file.get(f"{file.architecture}.attention.sliding_window", int, 0) or None)
        near = sliding_layers(file, self.config.num_layers, 0)
        self._spans = tuple(window if is_near else AttentionSpan() for is_near in near)

    def ffn(self, file: GGUFFile) -> FusedGLU:
        return FusedGLU(self.config.hidden_size, self.config.ffn_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        kinds = zip(super().layer_kinds(), self._spans, strict=True)
        return [Causal(kind.shape, span) for kind, span in kinds if isinstance(kind, Causal)]

    def rope(self) -> Rope:
        return replace(super().rope(), neox=True)
