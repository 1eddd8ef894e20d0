"""Jamba (Lieber et al. 2024): most layers are Mamba, few attend, and some have experts. None has a rope."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Recurrent
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import DecoderLayer
from chaski.model.arch import deepseek, llama
from chaski.model.arch.smollm3 import UnrotatedAttention
from chaski.model.architecture import Architecture
from chaski.model.hybrid import HybridModel
from chaski.model.input import Inputs
from chaski.model.rope import NO_ROPE
from chaski.model.selective_scan import Mamba, MambaConfig

ARCHITECTURE = Architecture(
    "jamba",
    "Jamba 1.5 to 1.7, Mini and Large, Jamba Reasoning 3B, Jamba 2",
    fixed={"attention.causal": (True,)},
)


class Model(HybridModel, deepseek.Model):
    """Layers without experts are those whose tensors have no router."""

    def layer(self, file: GGUFFile) -> DecoderLayer:
        return llama.Layer(self.config, UnrotatedAttention(self.config), self.ffn(file))

    def recurrence(self, file: GGUFFile) -> tuple[Callable[[], Callable[..., Tensor]], Recurrent]:
        c, mamba = self.config, MambaConfig.read(file)
        return lambda: Mamba(c.hidden_size, c.eps, mamba), mamba.kind()

    def rope(self) -> Rope:
        return NO_ROPE

    def positions(self, inputs: Inputs) -> None:
        """Attention reads no positions."""
