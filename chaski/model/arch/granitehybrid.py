"""Granite 4 H (Granite Team 2025) and Bamba: Granite in which most layers are Mamba 2 and few attend."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent
from chaski.ml.graph import Tensor
from chaski.model.arch import granite
from chaski.model.architecture import Architecture
from chaski.model.hybrid import HybridModel
from chaski.model.state_space import Mamba2, Mamba2Config

ARCHITECTURE = Architecture(
    "granitehybrid",
    "Granite 4 H, dense and with experts",
    tools=("hermes",),
    reads=("attention.scale", "embedding_scale", "logit_scale", "residual_scale"),
    fixed={"attention.causal": (True,)},
)


class Model(HybridModel, granite.Model):
    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        c, mamba = self.config, Mamba2Config.read(file)
        return lambda: Mamba2(c.hidden_size, c.eps, mamba), mamba.kind()
