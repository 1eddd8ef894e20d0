"""Kimi Linear (Kimi Team 2025): most layers are Kimi Delta Attention, the others latent attention."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent
from chaski.ml.graph import Rope, Tensor
from chaski.ml.moe_ops import Gating
from chaski.ml.nn import RouterConfig
from chaski.model.arch import deepseek2
from chaski.model.architecture import Architecture
from chaski.model.experts import read_router
from chaski.model.hybrid import HybridModel
from chaski.model.input import Inputs
from chaski.model.kimi_delta import KimiDelta, KimiDeltaConfig
from chaski.model.rope import NO_ROPE

ARCHITECTURE = Architecture(
    "kimi-linear",
    "Kimi Linear",
    tools=("kimi-k2",),
    reads=("leading_dense_block_count",),
    fixed={"attention.causal": (True,)},
)


class Model(HybridModel, deepseek2.Model):
    """Kimi Linear. No part of the keys of its latent attention is turned."""

    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        c, delta = self.config, KimiDeltaConfig.read(file, self.config.num_heads)
        return lambda: KimiDelta(c.hidden_size, c.eps, delta), delta.kind()

    def rope(self) -> Rope:
        return NO_ROPE

    def positions(self, inputs: Inputs) -> tuple[None, None]:
        """Attention reads no positions."""
        return None, None

    def router(self, file: GGUFFile) -> RouterConfig:
        return read_router(file, Gating.SIGMOID, normalized=True, has_bias=True)
