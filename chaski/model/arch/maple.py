"""Maple (DeepGrove 2026): Qwen 3 with experts and bounded activations; only windows have a rope."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import DecoderLayer, RouterConfig
from chaski.model.arch import deepseek, exaone4, llama
from chaski.model.architecture import Architecture
from chaski.model.experts import experts, read_router
from chaski.model.rope import NO_ROPE
from chaski.model.windowed import WindowedModel

ARCHITECTURE = Architecture(
    "maple",
    "Maple",
    reads=("attention.sliding_window", "rope.freq_base_swa", "swiglu_clamp_exp"),
)


def clamped(gate: Tensor, up: Tensor, *, limit: float) -> Tensor:
    """silu of the gate up to the limit, times up within ±limit."""
    low = -float("inf")
    return ops.swiglu(ops.clamp(gate, low=low, high=limit), ops.clamp(up, low=-limit, high=limit))


class Model(deepseek.Model, WindowedModel):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        self._near_base = file.get(f"{file.architecture}.rope.freq_base_swa", float, 0.0)
        super().__init__(file, projector)

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        layers = super().layers(file)
        limits = file.get(f"{file.architecture}.swiglu_clamp_exp", list[float])
        for layer, limit in zip(layers, limits, strict=True):
            activation = partial(clamped, limit=float(limit)) if limit else ops.swiglu
            layer.ffn = experts(file, self.config, self.router(file), activation)
        return layers

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, exaone4.Attention(self.config), self.ffn(file))

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SOFTMAX, normalized=True)

    def near_rope(self) -> Rope:
        c = self.config.rope
        return replace(c, base=self._near_base or c.base).rope(neox=True)

    def far_rope(self) -> Rope:
        return NO_ROPE
